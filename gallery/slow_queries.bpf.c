/* Slow queries of whatever uses SQLite: one record for each step of a statement that took longer than `slower_than` nanoseconds. */
// clang: -D__TARGET_ARCH_x86
#include <linux/bpf.h>
#include <linux/ptrace.h>
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_tracing.h>

char _license[] SEC("license") = "Dual MIT/GPL";

#define TEXT 200

const volatile __u64 slower_than = 1000000;

struct text {
	char sql[TEXT];
};

struct slow {
	__u64 took_ns;
	char sql[TEXT];
};
const struct slow *unused __attribute__((unused)); /* keeps the type, for whoever prints records */

/* What each statement was made of. */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 1024);
	__type(key, __u64);
	__type(value, struct text);
} statements SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 1 << 20);
} slow SEC(".maps");

/* What sqlite3_prepare_v2 of a thread was given: the text, and where the statement goes. */
struct call {
	const char *sql;
	__u64 *statement;
};

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 1024);
	__type(key, __u64);
	__type(value, struct call);
} calls SEC(".maps");

SEC("uprobe.multi/libsqlite3*:sqlite3_prepare_v2,sqlite3_prepare_v3")
int BPF_KPROBE(prepare, void *db, const char *sql, int length, unsigned long a, unsigned long b)
{
	struct call call = { sql, (__u64 *)a };
	__u64 thread = bpf_get_current_pid_tgid();

	/* sqlite3_prepare_v3 has flags before the address, which are small. */
	if (a < 4096)
		call.statement = (__u64 *)b;
	bpf_map_update_elem(&calls, &thread, &call, BPF_ANY);
	return 0;
}

SEC("uretprobe.multi/libsqlite3*:sqlite3_prepare_v2,sqlite3_prepare_v3")
int BPF_KRETPROBE(prepared)
{
	__u64 thread = bpf_get_current_pid_tgid(), statement = 0;
	struct call *call = bpf_map_lookup_elem(&calls, &thread);
	struct text text = {};

	if (!call)
		return 0;
	bpf_probe_read_user(&statement, sizeof(statement), call->statement);
	if (bpf_probe_read_user_str(text.sql, sizeof(text.sql), call->sql) > 0)
		bpf_map_update_elem(&statements, &statement, &text, BPF_ANY);
	bpf_map_delete_elem(&calls, &thread);
	return 0;
}

/* What a thread is in the middle of. */
struct step {
	__u64 statement;
	__u64 began;
};

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 1024);
	__type(key, __u64);
	__type(value, struct step);
} steps SEC(".maps");

SEC("uprobe.multi/libsqlite3*:sqlite3_step")
int BPF_KPROBE(step, __u64 statement)
{
	__u64 thread = bpf_get_current_pid_tgid();
	struct step step = { statement, bpf_ktime_get_ns() };

	bpf_map_update_elem(&steps, &thread, &step, BPF_ANY);
	return 0;
}

SEC("uretprobe.multi/libsqlite3*:sqlite3_step")
int BPF_KRETPROBE(stepped)
{
	__u64 thread = bpf_get_current_pid_tgid(), took;
	struct step *step = bpf_map_lookup_elem(&steps, &thread);
	struct text *text;
	struct slow *record;

	if (!step)
		return 0;
	took = bpf_ktime_get_ns() - step->began;
	text = bpf_map_lookup_elem(&statements, &step->statement);
	if (took < slower_than || !text)
		return 0;
	record = bpf_ringbuf_reserve(&slow, sizeof(*record), 0);
	if (!record)
		return 0;
	record->took_ns = took;
	__builtin_memcpy(record->sql, text->sql, sizeof(record->sql));
	bpf_ringbuf_submit(record, 0);
	return 0;
}
