// SPDX-License-Identifier: MIT OR Apache-2.0
/* The rival of skep's ports: bare loops over the same interfaces of the kernel, with rings of the same sizes.
 *
 *   wire receive packet|native|generic     frames that come in on `two`, until none has come for a tenth of a second
 *   wire send packet|generic SECONDS       frames of 60 bytes, out of `one`
 *
 * A receiver prints `ready` when it can receive, and at the end `frames N` and `ns N`, from the first frame to the last. Only frames of 60
 * bytes count, and their first bytes are read. */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/if_link.h>
#include <linux/if_packet.h>
#include <linux/if_xdp.h>
#include <net/if.h>
#include <poll.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define FRAME 60
#define IDLE_MS 100
#define BURST 64

static void fail(const char *what)
{
	fprintf(stderr, "%s: %s\n", what, strerror(errno));
	exit(1);
}

static uint64_t now(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * 1000000000ull + t.tv_nsec;
}

static const unsigned char frame[FRAME] = { 2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1, 8, 0, 0x45, 0, 0, 46 };

/* What a receiver has seen; `sum` keeps the compiler from leaving out the reads. */
static struct {
	uint64_t frames, first, last, sum;
} seen;

static void ready(void)
{
	puts("ready");
	fflush(stdout);
}

static void look(const unsigned char *bytes, unsigned length)
{
	if (length != FRAME)
		return;
	seen.sum += bytes[0] + bytes[12];
	seen.frames++;
}

/* After a burst. */
static void note_time(void)
{
	if (!seen.frames)
		return;
	seen.last = now();
	if (!seen.first)
		seen.first = seen.last;
}

/* Waits for more; 0 at the end. */
static int wait_for_more(int fd)
{
	struct pollfd p = { .fd = fd, .events = POLLIN };
	for (;;) {
		int n = poll(&p, 1, IDLE_MS);
		if (n < 0 && errno != EINTR)
			fail("poll");
		if (n > 0)
			return 1;
		if (seen.frames > BURST)
			return 0;
	}
}

static void set(int fd, int level, int option, const void *value, socklen_t size)
{
	if (setsockopt(fd, level, option, value, size))
		fail("setsockopt");
}

static void bind_packet(int fd, const char *name, int protocol)
{
	struct sockaddr_ll at = { .sll_family = AF_PACKET, .sll_protocol = htons(protocol), .sll_ifindex = if_nametoindex(name) };
	if (bind(fd, (void *)&at, sizeof at))
		fail("bind");
}

/* TPACKET_V3 */

#define BLOCK (1 << 19)
#define BLOCKS 16

static void receive_packet(void)
{
	int version = TPACKET_V3, yes = 1, fd = socket(AF_PACKET, SOCK_RAW, 0);
	struct tpacket_req3 ring = { .tp_block_size = BLOCK, .tp_block_nr = BLOCKS, .tp_frame_size = 2048,
				     .tp_frame_nr = BLOCK / 2048 * BLOCKS, .tp_retire_blk_tov = 4 };
	if (fd < 0)
		fail("socket");
	set(fd, SOL_PACKET, PACKET_VERSION, &version, sizeof version);
	set(fd, SOL_PACKET, PACKET_IGNORE_OUTGOING, &yes, sizeof yes);
	set(fd, SOL_PACKET, PACKET_RX_RING, &ring, sizeof ring);
	unsigned char *memory = mmap(NULL, (size_t)BLOCK * BLOCKS, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, fd, 0);
	if (memory == MAP_FAILED)
		fail("mmap");
	bind_packet(fd, "two", ETH_P_ALL);
	ready();
	for (unsigned at = 0;; at = (at + 1) % BLOCKS) {
		struct tpacket_block_desc *block = (void *)(memory + (size_t)at * BLOCK);
		while (!(__atomic_load_n(&block->hdr.bh1.block_status, __ATOMIC_ACQUIRE) & TP_STATUS_USER))
			if (!wait_for_more(fd))
				return;
		struct tpacket3_hdr *header = (void *)((char *)block + block->hdr.bh1.offset_to_first_pkt);
		for (unsigned n = block->hdr.bh1.num_pkts; n; n--) {
			look((unsigned char *)header + header->tp_mac, header->tp_snaplen);
			header = (void *)((char *)header + header->tp_next_offset);
		}
		__atomic_store_n(&block->hdr.bh1.block_status, 0, __ATOMIC_RELEASE);
		note_time();
	}
}

/* sendmmsg(2) */

static void send_packet(uint64_t until)
{
	int yes = 1, fd = socket(AF_PACKET, SOCK_RAW, 0);
	static struct mmsghdr messages[BURST];
	struct iovec part = { (void *)frame, FRAME };
	if (fd < 0)
		fail("socket");
	set(fd, SOL_PACKET, PACKET_QDISC_BYPASS, &yes, sizeof yes);
	bind_packet(fd, "one", 0);
	for (int i = 0; i < BURST; i++)
		messages[i].msg_hdr.msg_iov = &part, messages[i].msg_hdr.msg_iovlen = 1;
	while (now() < until) {
		int n = sendmmsg(fd, messages, BURST, 0);
		if (n > 0)
			seen.frames += n;
		else if (errno != ENOBUFS && errno != EAGAIN && errno != EINTR)
			fail("sendmmsg");
	}
}

/* AF_XDP */

#define CHUNK 4096
#define ENTRIES 2048

struct ring {
	uint32_t *producer, *consumer, *flags;
	void *entries;
};

static struct ring map_ring(int fd, const struct xdp_ring_offset *at, size_t entry, off_t page)
{
	char *memory = mmap(NULL, at->desc + ENTRIES * entry, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, fd, page);
	if (memory == MAP_FAILED)
		fail("mmap");
	return (struct ring){ (void *)(memory + at->producer), (void *)(memory + at->consumer), (void *)(memory + at->flags),
			      memory + at->desc };
}

static uint32_t load(const uint32_t *word)
{
	return __atomic_load_n(word, __ATOMIC_ACQUIRE);
}

static void store(uint32_t *word, uint32_t value)
{
	__atomic_store_n(word, value, __ATOMIC_RELEASE);
}

static struct {
	int fd;
	unsigned char *memory;
	struct ring fill, completion, receive, send;
} xdp;

static void open_xdp(const char *name)
{
	int entries = ENTRIES;
	struct xdp_umem_reg memory = { .len = 2ull * ENTRIES * CHUNK, .chunk_size = CHUNK };
	struct xdp_mmap_offsets at;
	socklen_t size = sizeof at;
	xdp.fd = socket(AF_XDP, SOCK_RAW, 0);
	if (xdp.fd < 0)
		fail("socket");
	xdp.memory = mmap(NULL, memory.len, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
	if (xdp.memory == MAP_FAILED)
		fail("mmap");
	memory.addr = (uintptr_t)xdp.memory;
	set(xdp.fd, SOL_XDP, XDP_UMEM_REG, &memory, sizeof memory);
	set(xdp.fd, SOL_XDP, XDP_UMEM_FILL_RING, &entries, sizeof entries);
	set(xdp.fd, SOL_XDP, XDP_UMEM_COMPLETION_RING, &entries, sizeof entries);
	set(xdp.fd, SOL_XDP, XDP_RX_RING, &entries, sizeof entries);
	set(xdp.fd, SOL_XDP, XDP_TX_RING, &entries, sizeof entries);
	if (getsockopt(xdp.fd, SOL_XDP, XDP_MMAP_OFFSETS, &at, &size))
		fail("getsockopt");
	xdp.fill = map_ring(xdp.fd, &at.fr, 8, XDP_UMEM_PGOFF_FILL_RING);
	xdp.completion = map_ring(xdp.fd, &at.cr, 8, XDP_UMEM_PGOFF_COMPLETION_RING);
	xdp.receive = map_ring(xdp.fd, &at.rx, sizeof(struct xdp_desc), XDP_PGOFF_RX_RING);
	xdp.send = map_ring(xdp.fd, &at.tx, sizeof(struct xdp_desc), XDP_PGOFF_TX_RING);
	for (uint64_t i = 0; i < ENTRIES; i++)
		((uint64_t *)xdp.fill.entries)[i] = i * CHUNK;
	store(xdp.fill.producer, ENTRIES);
	struct sockaddr_xdp to = { .sxdp_family = AF_XDP, .sxdp_ifindex = if_nametoindex(name),
				   .sxdp_flags = XDP_COPY | XDP_USE_NEED_WAKEUP };
	/* The kernel gives up the queue of a socket that was closed some time after that. */
	for (int i = 0; bind(xdp.fd, (void *)&to, sizeof to); i++) {
		if (errno != EBUSY || i > 200)
			fail("bind");
		usleep(5000);
	}
}

static int bpf(int command, union bpf_attr *attr)
{
	int fd = syscall(SYS_bpf, command, attr, sizeof *attr);
	if (fd < 0)
		fail("bpf");
	return fd;
}

/* Attaches a program that sends the frames of queue 0 to the socket; it goes with the process. */
static void attach(const char *name, int is_generic)
{
	union bpf_attr of_map = { .map_type = BPF_MAP_TYPE_XSKMAP, .key_size = 4, .value_size = 4, .max_entries = 1 };
	int map = bpf(BPF_MAP_CREATE, &of_map);
	struct bpf_insn program[] = {
		{ .code = BPF_LDX | BPF_MEM | BPF_W, .dst_reg = 2, .src_reg = 1, .off = 16 },
		{ .code = BPF_LD | BPF_IMM | BPF_DW, .dst_reg = 1, .src_reg = BPF_PSEUDO_MAP_FD, .imm = map },
		{ 0 },
		{ .code = BPF_ALU64 | BPF_MOV | BPF_K, .dst_reg = 3, .imm = XDP_PASS },
		{ .code = BPF_JMP | BPF_CALL, .imm = BPF_FUNC_redirect_map },
		{ .code = BPF_JMP | BPF_EXIT },
	};
	union bpf_attr load = { .prog_type = BPF_PROG_TYPE_XDP, .insns = (uintptr_t)program, .license = (uintptr_t)"GPL",
				.insn_cnt = sizeof program / sizeof *program };
	uint32_t queue = 0;
	int fd = bpf(BPF_PROG_LOAD, &load);
	union bpf_attr element = { .map_fd = map, .key = (uintptr_t)&queue, .value = (uintptr_t)&xdp.fd };
	bpf(BPF_MAP_UPDATE_ELEM, &element);
	union bpf_attr link = { .link_create = { .prog_fd = fd, .target_ifindex = if_nametoindex(name), .attach_type = BPF_XDP,
						 .flags = is_generic ? XDP_FLAGS_SKB_MODE : 0 } };
	bpf(BPF_LINK_CREATE, &link);
}

static void receive_xdp(int is_generic)
{
	uint32_t taken = 0, given = ENTRIES;
	open_xdp("two");
	attach("two", is_generic);
	ready();
	for (;;) {
		uint32_t n = load(xdp.receive.producer) - taken;
		if (!n) {
			if (!wait_for_more(xdp.fd))
				return;
			continue;
		}
		if (n > BURST)
			n = BURST;
		for (uint32_t i = 0; i < n; i++) {
			struct xdp_desc *d = (struct xdp_desc *)xdp.receive.entries + ((taken + i) % ENTRIES);
			look(xdp.memory + d->addr, d->len);
			((uint64_t *)xdp.fill.entries)[(given + i) % ENTRIES] = d->addr & ~(uint64_t)(CHUNK - 1);
		}
		store(xdp.receive.consumer, taken += n);
		store(xdp.fill.producer, given += n);
		if (load(xdp.fill.flags) & XDP_RING_NEED_WAKEUP)
			poll(&(struct pollfd){ .fd = xdp.fd, .events = POLLIN }, 1, 0);
		note_time();
	}
}

static void send_xdp(uint64_t until)
{
	uint32_t added = 0, done = 0;
	open_xdp("one");
	while (now() < until) {
		uint32_t n = ENTRIES - (added - done);
		if (n > BURST)
			n = BURST;
		for (uint32_t i = 0; i < n; i++) {
			uint64_t chunk = (ENTRIES + (uint64_t)(added + i) % ENTRIES) * CHUNK;
			memcpy(xdp.memory + chunk, frame, FRAME);
			((struct xdp_desc *)xdp.send.entries)[(added + i) % ENTRIES] = (struct xdp_desc){ .addr = chunk, .len = FRAME };
		}
		store(xdp.send.producer, added += n);
		if (load(xdp.send.flags) & XDP_RING_NEED_WAKEUP && sendto(xdp.fd, NULL, 0, MSG_DONTWAIT, NULL, 0) < 0 && errno != EAGAIN &&
		    errno != EBUSY && errno != ENOBUFS && errno != EINTR)
			fail("sendto");
		/* Chunks come back in the order in which they were sent. */
		done = load(xdp.completion.producer);
		store(xdp.completion.consumer, done);
	}
	seen.frames = done;
}

int main(int argc, char **argv)
{
	uint64_t began = now(), until = began + (argc > 3 ? strtod(argv[3], NULL) * 1e9 : 0);
	const char *what = argc > 1 ? argv[1] : "", *way = argc > 2 ? argv[2] : "";
	if (!strcmp(what, "receive") && !strcmp(way, "packet")) {
		receive_packet();
	} else if (!strcmp(what, "receive") && (!strcmp(way, "native") || !strcmp(way, "generic"))) {
		receive_xdp(!strcmp(way, "generic"));
	} else if (!strcmp(what, "send") && argc > 3 && (!strcmp(way, "packet") || !strcmp(way, "generic"))) {
		if (!strcmp(way, "packet"))
			send_packet(until);
		else
			send_xdp(until);
		seen.first = began, seen.last = now();
	} else {
		return fprintf(stderr, "usage: wire receive packet|native|generic; wire send packet|generic SECONDS\n"), 2;
	}
	printf("frames %llu\nns %llu\nsum %llu\n", (unsigned long long)seen.frames, (unsigned long long)(seen.last - seen.first),
	       (unsigned long long)seen.sum);
	return 0;
}
