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

/* A call that has not returned: SQLite reads its schema by statements of its own, in the middle of another one. */
struct frame {
	__u64 thread;
	__u64 stack; /* where its return address is */
};

static __always_inline struct frame frame_of(__u64 stack)
{
	return (struct frame){ bpf_get_current_pid_tgid(), stack };
}

/* What a call of sqlite3_prepare_v2 was given: the text, and where the statement and the address of what is
 * behind it in the text go. */
struct call {
	const char *sql;
	__s64 length; /* of the text; negative: to its end */
	__u64 *statement;
	const char **tail;
};

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 1024);
	__type(key, struct frame);
	__type(value, struct call);
} calls SEC(".maps");

SEC("uprobe.multi/libsqlite3*:sqlite3_prepare_v2")
int BPF_KPROBE(prepare, void *db, const char *sql, int length, __u64 *statement, const char **tail)
{
	struct call call = { sql, length, statement, tail };
	struct frame frame = frame_of(PT_REGS_SP(ctx));

	bpf_map_update_elem(&calls, &frame, &call, BPF_ANY);
	return 0;
}

SEC("uprobe.multi/libsqlite3*:sqlite3_prepare_v3")
int BPF_KPROBE(prepare_v3, void *db, const char *sql, int length, unsigned int flags, __u64 *statement)
{
	struct call call = { sql, length, statement, (const char **)ctx->r9 }; /* the sixth argument */
	struct frame frame = frame_of(PT_REGS_SP(ctx));

	bpf_map_update_elem(&calls, &frame, &call, BPF_ANY);
	return 0;
}

SEC("uretprobe.multi/libsqlite3*:sqlite3_prepare_v2,sqlite3_prepare_v3")
int BPF_KRETPROBE(prepared)
{
	struct frame frame = frame_of(PT_REGS_SP(ctx) - 8);
	struct call *call = bpf_map_lookup_elem(&calls, &frame);
	__u64 statement = 0, length;
	const char *tail = 0;
	struct text text = {};

	if (!call)
		return 0;
	bpf_probe_read_user(&statement, sizeof(statement), call->statement);
	/* Without a tail, what is behind the statement cannot be told from it. */
	length = call->length < 0 ? TEXT : call->length;
	if (call->tail && !bpf_probe_read_user(&tail, sizeof(tail), call->tail))
		length = tail - call->sql;
	if (length > TEXT - 1)
		length = TEXT - 1;
	if (statement && bpf_probe_read_user_str(text.sql, length + 1, call->sql) > 0)
		bpf_map_update_elem(&statements, &statement, &text, BPF_ANY);
	bpf_map_delete_elem(&calls, &frame);
	return 0;
}

struct step {
	__u64 statement;
	__u64 began;
};

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 1024);
	__type(key, struct frame);
	__type(value, struct step);
} steps SEC(".maps");

SEC("uprobe.multi/libsqlite3*:sqlite3_step")
int BPF_KPROBE(step, __u64 statement)
{
	struct frame frame = frame_of(PT_REGS_SP(ctx));
	struct step step = { statement, bpf_ktime_get_ns() };

	bpf_map_update_elem(&steps, &frame, &step, BPF_ANY);
	return 0;
}

SEC("uretprobe.multi/libsqlite3*:sqlite3_step")
int BPF_KRETPROBE(stepped)
{
	struct frame frame = frame_of(PT_REGS_SP(ctx) - 8);
	struct step *step = bpf_map_lookup_elem(&steps, &frame);
	struct text *text;
	struct slow *record;
	__u64 took;

	if (!step)
		return 0;
	took = bpf_ktime_get_ns() - step->began;
	text = bpf_map_lookup_elem(&statements, &step->statement);
	bpf_map_delete_elem(&steps, &frame);
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
