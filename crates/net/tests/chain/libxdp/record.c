// SPDX-License-Identifier: MIT OR Apache-2.0
/* Has libxdp make dispatchers of random lists of programs, and prints the lists, the order that it sorted them into, and
 * what the dispatchers answer on the running kernel.
 *
 *   for pad in 0 1 2; do clang -O2 -g -target bpf -DPAD=$pad -c programs.bpf.c -o pad$pad.bpf.o; done
 *   gcc -O2 record.c -o record -lxdp -lbpf && ./record pad0.bpf.o pad1.bpf.o pad2.bpf.o > recorded.txt
 *
 * As root. (Debian: libxdp-dev; this was 1.3.1, dispatcher version 2, on Linux 6.18.)
 *
 * libxdp puts programs into its dispatcher by freplace, which the kernel of the records does not have. So system calls of
 * libxdp and libbpf go through `syscall` below: programs for freplace are loaded as XDP programs, and
 * descriptors of theirs stand for their links. What is libxdp's own is not touched: the order, the configuration, the dispatcher and its load. A second copy
 * of the loaded dispatcher, with the same configuration, gets functions in the places of freplace that note in the packet
 * that they ran and answer a constant, and is run by BPF_PROG_TEST_RUN. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <net/if.h>
#include <sched.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/syscall.h>
#include <unistd.h>
#include <bpf/bpf.h>
#include <bpf/btf.h>
#include <bpf/libbpf.h>
#include <xdp/libxdp.h>

#define LISTS 120
#define RUNS 4
#define PLACES 10
#define PACKET 64
#define SHOULD(condition)                                                                        \
	do {                                                                                     \
		if (!(condition)) {                                                              \
			fprintf(stderr, "line %d: %s: %s\n", __LINE__, #condition, strerror(errno)); \
			exit(1);                                                                 \
		}                                                                                \
	} while (0)

static const char *const names[] = { "alpha", "Alpha", "alphabet", "beta", "p2", "p10", "_under", "zulu",
				     "a_name_longer_than_15" };

static uint64_t state = 0x5eed;
static uint64_t below(uint64_t n)
{
	state ^= state << 13;
	state ^= state >> 7;
	state ^= state << 17;
	return (state >> 11) % n;
}

struct member {
	struct xdp_program *program;
	const char *name;
	unsigned pad, size, id;
	bool loaded;
};
static struct member members[PLACES];
static unsigned count;

/* What was seen of the calls for the list at hand. */
static struct {
	unsigned id, size, place;
} components[PLACES];
static unsigned component_count;
static int order[PLACES];
static unsigned says[RUNS][PLACES], verdicts[RUNS], ran[RUNS];
static int dispatcher = -1;

static long (*real)(long, ...);
static long bpf_call(int cmd, union bpf_attr *attr, size_t size)
{
	return real(__NR_bpf, cmd, attr, size);
}

static struct bpf_prog_info info_of(int fd)
{
	struct bpf_prog_info info = {};
	uint32_t size = sizeof(info);
	SHOULD(!bpf_obj_get_info_by_fd(fd, &info, &size));
	return info;
}

/* Which of `prog0`…`prog9` a type is. */
static unsigned place_of(uint32_t btf_id, uint32_t type)
{
	struct btf *btf = btf__load_from_kernel_by_id(btf_id);
	unsigned place = PLACES;
	SHOULD(btf);
	sscanf(btf__name_by_offset(btf, btf__type_by_id(btf, type)->name_off), "prog%u", &place);
	btf__free(btf);
	return place;
}

/* Runs a copy of the dispatcher whose places answer so. */
static void run_copy(const union bpf_attr *load, size_t attr_size, uint32_t btf_id, unsigned run)
{
	const struct bpf_insn *old = (const void *)load->insns;
	unsigned length = load->insn_cnt;
	struct bpf_insn *insns = calloc(length + PLACES * 8, sizeof(*insns));
	memcpy(insns, old, length * sizeof(*insns));
	for (unsigned n = 0; n < load->func_info_cnt; n++) {
		const struct bpf_func_info *f = (const void *)(load->func_info + n * load->func_info_rec_size);
		unsigned place = place_of(btf_id, f->type_id);
		if (place >= PLACES)
			continue;
		unsigned at = f->insn_off;
		/* The place becomes: call what stands behind everything, exit; with nothing between that is not reached. */
		insns[at] = (struct bpf_insn){ .code = BPF_JMP | BPF_CALL, .src_reg = BPF_PSEUDO_CALL,
					       .imm = (int)(length - at - 1) };
		for (at++; insns[at].code != (BPF_JMP | BPF_EXIT); at++)
			insns[at] = (struct bpf_insn){ .code = BPF_ALU64 | BPF_MOV | BPF_X };
		const struct bpf_insn body[] = {
			{ .code = BPF_LDX | BPF_W | BPF_MEM, .dst_reg = 2, .src_reg = 1, .off = 4 },
			{ .code = BPF_LDX | BPF_W | BPF_MEM, .dst_reg = 1, .src_reg = 1, .off = 0 },
			{ .code = BPF_ALU64 | BPF_MOV | BPF_X, .dst_reg = 3, .src_reg = 1 },
			{ .code = BPF_ALU64 | BPF_ADD | BPF_K, .dst_reg = 3, .imm = PACKET },
			{ .code = BPF_JMP | BPF_JGT | BPF_X, .dst_reg = 3, .src_reg = 2, .off = 1 },
			{ .code = BPF_ST | BPF_B | BPF_MEM, .dst_reg = 1, .off = (short)place, .imm = 1 },
			{ .code = BPF_ALU | BPF_MOV | BPF_K, .dst_reg = 0, .imm = (int)says[run][place] },
			{ .code = BPF_JMP | BPF_EXIT },
		};
		memcpy(insns + length, body, sizeof(body));
		length += sizeof(body) / sizeof(*body);
	}
	union bpf_attr attr = {};
	memcpy(&attr, load, attr_size);
	attr.insns = (uintptr_t)insns;
	attr.insn_cnt = length;
	attr.prog_btf_fd = attr.func_info_cnt = attr.line_info_cnt = attr.core_relo_cnt = 0;
	int fd = (int)bpf_call(BPF_PROG_LOAD, &attr, attr_size);
	SHOULD(fd >= 0);
	unsigned char in[PACKET] = {}, out[PACKET] = {};
	LIBBPF_OPTS(bpf_test_run_opts, test, .data_in = in, .data_size_in = PACKET, .data_out = out, .data_size_out = PACKET);
	SHOULD(!bpf_prog_test_run_opts(fd, &test));
	verdicts[run] = test.retval;
	ran[run] = 0;
	for (unsigned place = 0; place < PLACES; place++)
		ran[run] |= (unsigned)out[place] << place;
	close(fd);
	free(insns);
}

static long load(union bpf_attr *attr, size_t size)
{
	if (attr->prog_type == BPF_PROG_TYPE_EXT) {
		struct bpf_prog_info info = info_of((int)attr->attach_prog_fd);
		unsigned place = place_of(info.btf_id, attr->attach_btf_id);
		union bpf_attr plain = {};
		memcpy(&plain, attr, size);
		plain.prog_type = BPF_PROG_TYPE_XDP;
		plain.attach_prog_fd = plain.attach_btf_id = plain.expected_attach_type = 0;
		int fd = (int)bpf_call(BPF_PROG_LOAD, &plain, size);
		SHOULD(fd >= 0);
		SHOULD(component_count < PLACES);
		components[component_count].id = info_of(fd).id;
		components[component_count].size = attr->insn_cnt;
		components[component_count++].place = place;
		return fd;
	}
	int fd = (int)bpf_call(BPF_PROG_LOAD, attr, size);
	if (fd >= 0 && !strcmp(attr->prog_name, "xdp_dispatcher")) {
		dispatcher = fd;
		component_count = 0;
		memset(order, -1, sizeof(order));
		for (unsigned run = 0; run < RUNS; run++)
			run_copy(attr, size, info_of(fd).btf_id, run);
	}
	return fd;
}

/* Which member's program is linked to which place. */
static void linked(int fd, int target, uint32_t type)
{
	struct bpf_prog_info info = info_of(fd);
	unsigned place = PLACES, size = 0;
	for (unsigned n = 0; n < component_count; n++)
		if (components[n].id == info.id) {
			place = components[n].place;
			size = components[n].size;
		}
	if (type)
		place = place_of(info_of(target).btf_id, type);
	if (place >= PLACES)
		return;
	for (unsigned n = 0; n < count; n++) {
		const struct member *m = &members[n];
		if (m->loaded ? m->id == info.id : size == m->size && !strncmp(info.name, m->name, 15))
			order[place] = (int)n;
	}
}

long syscall(long number, ...)
{
	va_list list;
	long a[6];
	va_start(list, number);
	for (int n = 0; n < 6; n++)
		a[n] = va_arg(list, long);
	va_end(list);
	if (!real)
		real = (long (*)(long, ...))dlsym(RTLD_NEXT, "syscall");
	union bpf_attr *attr = (void *)a[1];
	if (number == __NR_bpf)
		switch ((int)a[0]) {
		case BPF_PROG_LOAD:
			return load(attr, (size_t)a[2]);
		case BPF_RAW_TRACEPOINT_OPEN:
			if (attr->raw_tracepoint.name)
				break;
			linked((int)attr->raw_tracepoint.prog_fd, -1, 0);
			return dup((int)attr->raw_tracepoint.prog_fd);
		case BPF_LINK_CREATE:
			linked((int)attr->link_create.prog_fd, (int)attr->link_create.target_fd,
			       attr->link_create.target_btf_id);
			return dup((int)attr->link_create.prog_fd);
		}
	return real(number, a[0], a[1], a[2], a[3], a[4], a[5]);
}

/* Takes a program with wishes for a new place of the list; false if the list has its like. */
static bool choose(char **objects, unsigned n)
{
	struct member m = { .name = names[below(sizeof(names) / sizeof(*names))], .pad = (unsigned)below(3),
			    .loaded = !below(3) };
	for (unsigned k = 0; k < n; k++)
		if (members[k].name == m.name && members[k].pad == m.pad && !members[k].loaded && !m.loaded)
			return false;
	if (m.loaded) {
		struct bpf_object *object = bpf_object__open_file(objects[m.pad], NULL);
		struct bpf_program *p;
		SHOULD(object);
		bpf_object__for_each_program(p, object)
			bpf_program__set_autoload(p, !strcmp(bpf_program__name(p), m.name));
		SHOULD(!bpf_object__load(object));
		p = bpf_object__find_program_by_name(object, m.name);
		m.program = xdp_program__from_fd(bpf_program__fd(p));
		SHOULD(!libxdp_get_error(m.program));
		m.size = (unsigned)bpf_program__insn_cnt(p);
		m.id = info_of(bpf_program__fd(p)).id;
		bpf_object__close(object);
	} else {
		DECLARE_LIBXDP_OPTS(xdp_program_opts, opts, .open_filename = objects[m.pad], .prog_name = m.name);
		m.program = xdp_program__create(&opts);
		SHOULD(!libxdp_get_error(m.program));
		m.size = (unsigned)bpf_program__insn_cnt(
			bpf_object__find_program_by_name(xdp_program__bpf_obj(m.program), m.name));
	}
	/* What is loaded has what its object said, which is nothing. */
	if (!m.loaded && below(4))
		SHOULD(!xdp_program__set_run_prio(m.program, below(8) ? 49 + (unsigned)below(3) : (unsigned)below(1ull << 32)));
	for (unsigned bit = 0; !m.loaded && bit < 31; bit++)
		if (!below(bit < 5 ? 2 : 8))
			SHOULD(!xdp_program__set_chain_call_enabled(m.program, bit, below(2)));
	members[n] = m;
	return true;
}

int main(int argc, char **argv)
{
	char directory[] = "/tmp/record.XXXXXX";
	SHOULD(argc == 4);
	SHOULD(!unshare(CLONE_NEWNET | CLONE_NEWNS));
	SHOULD(!mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL));
	SHOULD(mkdtemp(directory) && !mount("bpf", directory, "bpf", 0, NULL));
	setenv("LIBXDP_BPFFS", directory, 1);
	/* libxdp tries a dispatcher out between making the first one and filling it: the first list is not kept. */
	FILE *out = fopen("/dev/null", "w");
	int lo = (int)if_nametoindex("lo");
	for (unsigned list = 0; list <= LISTS; list++) {
		count = 2 + (unsigned)below(PLACES - 1); /* One program is attached without a dispatcher. */
		for (unsigned n = 0; n < count;)
			n += choose(argv + 1, n);
		for (unsigned run = 0; run < RUNS; run++)
			for (unsigned place = 0; place < PLACES; place++)
				says[run][place] = below(3) ? 2 : (unsigned)below(below(2) ? 5 : 32);
		fprintf(out, "list\n");
		for (unsigned n = 0; n < count; n++) {
			const struct member *m = &members[n];
			unsigned actions = 0;
			for (unsigned bit = 0; bit < 31; bit++)
				actions |= (unsigned)xdp_program__chain_call_enabled(m->program, bit) << bit;
			fprintf(out, "program %s %u %08x %u", m->name, xdp_program__run_prio(m->program), actions, m->size * 8);
			if (m->loaded) {
				struct bpf_prog_info info = info_of(xdp_program__fd(m->program));
				fprintf(out, " loaded ");
				for (int byte = 0; byte < 8; byte++)
					fprintf(out, "%02x", info.tag[byte]);
				fprintf(out, " %llu", info.load_time);
			}
			fputc('\n', out);
		}
		struct xdp_program *programs[PLACES];
		for (unsigned n = 0; n < count; n++)
			programs[n] = members[n].program;
		int error = xdp_program__attach_multi(programs, count, lo, XDP_MODE_SKB, 0);
		if (error) {
			fprintf(stderr, "attach: %s\n", strerror(-error));
			return 1;
		}
		fprintf(out, "order");
		for (unsigned place = 0; place < count; place++) {
			SHOULD(order[place] >= 0);
			fprintf(out, " %d", order[place]);
		}
		fputc('\n', out);
		for (unsigned run = 0; run < RUNS; run++) {
			fprintf(out, "run");
			for (unsigned place = 0; place < count; place++)
				fprintf(out, " %u", says[run][place]);
			fprintf(out, " -> ");
			for (unsigned place = 0; place < count; place++)
				fputc(ran[run] >> place & 1 ? '1' : '0', out);
			fprintf(out, " %u\n", verdicts[run]);
		}
		SHOULD(!bpf_xdp_detach(lo, 1 << 1 /* XDP_FLAGS_SKB_MODE */, NULL));
		for (unsigned n = 0; n < count; n++)
			xdp_program__close(members[n].program);
		out = stdout;
	}
	umount(directory);
	rmdir(directory);
	return 0;
}
