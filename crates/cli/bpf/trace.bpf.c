/* The program behind `skep trace`: calls, total and self time and a log2 histogram for every function, per thread.
 * All times are in units of the time-stamp counter.
 *
 * It is attached once to all functions as a session (run at entry and at return); the attach cookie is the function's
 * index in `stats`. A per-CPU value belongs to one thread while a program runs, and to the same thread from run to run
 * unless there are more threads than slots, so a thread's stack of calls can be kept in one.
 *
 * Self time without a shadow stack of children: `done` is the sum of the self times of all finished calls of the
 * thread. What it grew by between entry and return is what callees took. A frame that never returns (longjmp, an
 * exception, exit) adds nothing: its time stays with its caller.
 *
 * Every call is counted. Reading the time costs ten times what counting does, so of functions that are called often and
 * return soon a random sample is timed, as long as the estimate of the total time stays within 5 % with 95 % confidence:
 *
 * - Timed calls are looked at in blocks. In a block of REVIEW calls all are timed; in a block of SAMPLE timed calls, each is
 *   followed by a random number of untimed ones. Every block of the second kind is a stratum with its own mean and variance,
 *   so a function that changes its behavior between blocks costs no accuracy, and inside one shows as variance.
 * - The next block may be sampled only if the variance of all estimates so far, and of one more, is within the limit; the
 *   largest variance of recent blocks counts (`spread`), which remembers rare long calls. The less is sure, the more calls of
 *   a block are timed.
 * - A timed call that is much longer than its block's mean ends the block, and all calls are timed again. The untimed calls can
 *   have had no more of such time than passed between the timed ones.
 * - A pause between two timed calls that is longer than any before may have been one long untimed call. Then all calls are timed
 *   until a call or a pause of that size is seen, which tells what it was.
 *
 * An untimed call adds what timed ones took on average to `done`, so that its caller's self time stays right.
 * docs/estimates.md has the formulas.
 *
 * Most functions of a program are called a few times. What is known of those is in `struct stat`; the rest is in `struct block`, in
 * an array of its own, which then takes no memory.
 */
#include "skep.bpf.h"
#include "frames.bpf.h"

/* How often this thread was preempted; a system call. Not a function of the kernel. */
extern __u64 skep_get_preemptions(void) __ksym __weak;

/* Takes the program out of the function that it runs on. Not a function of the kernel. */
extern int skep_detach_func(void *ctx) __ksym __weak;

#define BUCKETS 40
/* Timed calls of which the bucket is noted for each; a power of two. */
#define FEW 16

struct stat {
	/* What an untimed call touches lies in one line. `next` is not where `done` is in `struct thread`: a load waits for a store
	 * before it when the two differ by a multiple of 4096, as they would for the first function.
	 */
	__u64 calls;
	__u32 outer; /* the outermost running timed call */
	__u32 worst; /* the longest outlier that would not have been seen as a pause, fading */
	__u64 next; /* calls with lower numbers are not timed; 0: all calls are timed */
	__u64 mean_self; /* of timed calls, in the block before */
	__u64 entered; /* calls that were to be timed: all but the untimed ones */
	__u32 seed; /* of the random number generator; 0: not yet */
	__u16 mask; /* in a sampled block up to so many calls go by before the next is timed: 2^n - 1 */
	__u16 always; /* all calls are timed for good: it recurses, and nobody could tell which untimed call is outermost; or DROP */
	__u64 timed; /* timed calls that returned */
	__u64 outermost; /* those of them that were outermost */
	__u64 total; /* time of timed outermost calls */
	__u64 self; /* of timed calls; below 0 for a while, when untimed callees took less than on average */
	__u64 last; /* when the last timed call returned */
	__u32 limit; /* a longer time between two timed calls is a pause */
	__u32 large; /* a longer call is an outlier */
	__u8 first[FEW]; /* the first timed calls: the buckets that they belong into */
} __attribute__((aligned(64)));

/* What is known of a function besides, of calls behind the first FEW. */
struct block {
	__u64 unsure; /* what timing more calls does not change, as `variance` */
	/* The current block: */
	__u64 began;
	__u64 sum; /* time of timed calls that are no outliers */
	__u64 self_sum;
	__u64 squares; /* of the differences between `mean` and their times */
	__u16 n; /* how many these are */
	__u16 outliers;
	__u32 preemptions; /* of the thread, when the block began or after the last that was noticed */
	__u64 outlier_sum;
	__u32 mean; /* of the block before */
	__u32 pause; /* the longest time between two calls while all were timed */

	__u64 spread; /* the largest variance of a block, fading */
	__u64 usual; /* a moving average of the blocks' variances */
	__u64 pending; /* a longer pause among untimed calls: nobody knows yet whether it was one of them */
	__u64 probe; /* up to this call all calls are timed, to find that out */
	/* Untimed calls of finished blocks, without the overhead that timed ones have: */
	__u64 guessed; /* how many */
	__u64 guessed_total;
	__u64 guessed_self;
	__u64 variance; /* of `guessed_total`, in units of 2^VARIANCE_SHIFT */
	__u32 hist[BUCKETS]; /* calls that took [2^i, 2^(i+1)), estimated; the last one has all longer ones, too */
} __attribute__((aligned(64)));

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1 << 18);
	__type(key, __u32);
	__type(value, struct stat);
} stats SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1 << 18);
	__type(key, __u32);
	__type(value, struct block);
} blocks SEC(".maps");

struct settings {
	__u32 mask; /* `mask` of a sampled block that is not sparse: 2^n - 1, at most 63; 0 times all */
	__u32 overhead; /* what a timed call that does nothing takes */
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct settings);
} settings SEC(".maps");

/* In `always`, written by the reader: the function is to be let go (`--budget`). */
#define DROP 0x100

/* Timed calls in a block in which all are timed, and in a sampled one. */
#define REVIEW 512
#define SAMPLE 64
/* The first calls find cold caches: they are timed, and tell nothing of others. */
#define WARM_UP 32
/* After a pause that nobody can explain, all calls are timed for so many times as long as it took to come up. Were it one of the calls,
 * as rare as it seems, another one would be seen in 16 of 17 cases.
 */
#define PROBE 16
/* So many calls are timed before any is not. */
#define FIRST (8 * REVIEW)
/* Calls that take less on average are short: a microsecond or so. */
#define SHORT 4096
/* A sampled block has SAMPLE * WEIGHT(mask) calls, and with a mask of 63 the variance of its estimate is 2^VARIANCE_SHIFT times that
 * of one call.
 */
#define VARIANCE_SHIFT 16
/* Calls that a timed one of a sampled block stands for. */
#define WEIGHT(mask) ((mask) / 2 + 1)
/* A sparse block, in which one call of 128 is timed: after so many calls, of functions that take less than reading the clock does. Its
 * estimate has SPARSE_VARIANCE times the variance.
 */
#define SPARSE_MASK 255
#define SPARSE_CALLS (1 << 20)
#define SPARSE_VARIANCE 16
/* The 20th part of a time (5 %), in the unit whose square is that of variances. */
#define ALLOWED(time) ((time) / (20 << (VARIANCE_SHIFT / 2)))
/* Differences are cut to this before they are squared, so that the squares of a block fit into 64 bits. */
#define MAX_DIFFERENCE (1ULL << 27)
/* It is worth a system call to find out whether the thread was preempted in what took longer. */
#define LONG (4 * SHORT)
/* What does not fit into 32 bits is this long. */
#define MOST 0xffffffffULL

#define R2(n) n, n
#define R4(n) R2(n), R2(n)
#define R16(n) R4(n), R4(n), R4(n), R4(n)
#define R64(n) R16(n), R16(n), R16(n), R16(n)

static const __u8 log2_table[256] = {
	0, 0, R2(1), R4(2), R4(3), R4(3), R16(4), R16(5), R16(5), R64(6), R64(7), R64(7),
};

/* 1 if `v` has more than so many bits, else 0; without a branch, which times that lie around a power of two would mispredict. */
static __always_inline __u64 beyond(__u64 v, __u32 bits)
{
	return ((1ULL << bits) - 1 - v) >> 63;
}

static __always_inline __u32 log2_of(__u64 v)
{
	__u32 base, shift;

	v &= ~0ULL >> 1;
	base = shift = beyond(v, 32) << 5;
	v >>= shift;
	base += shift = beyond(v, 16) << 4;
	v >>= shift;
	base += shift = beyond(v, 8) << 3;
	v >>= shift;
	return base + log2_table[v & 0xff];
}

static __always_inline __u64 square(__u64 difference)
{
	if ((__s64)difference < 0)
		difference = -difference;
	if (difference > MAX_DIFFERENCE)
		difference = MAX_DIFFERENCE;
	return difference * difference;
}

static __always_inline __u64 min(__u64 a, __u64 b)
{
	return a < b ? a : b;
}

/* Draws the number of the next call that is timed. */
static __always_inline void draw(struct stat *s)
{
	__u32 x = s->seed;

	if (!x)
		x = bpf_get_prandom_u32() | 1;
	x ^= x << 13;
	x ^= x >> 17;
	x ^= x << 5;
	s->seed = x;
	s->next = s->calls + 1 + (x >> 7 & s->mask);
}

/* Variance of the estimate for `untimed` calls from `n` timed ones with variance `s2`, all of one block. */
static __always_inline __u64 variance_of(__u64 untimed, __u64 n, __u64 s2)
{
	__u64 k = untimed * (untimed + n) / n;

	s2 = min(s2, 1ULL << 44);
	if (k > 1 << 22)
		k = 1 << 22;
	return s2 < 1ULL << 40 ? k * s2 >> VARIANCE_SHIFT : k * (s2 >> VARIANCE_SHIFT);
}

/* Estimates the untimed calls of the block that ends. Returns the variance of its timed calls. */
static __attribute__((noinline)) __u64 estimate(struct stat *s, struct block *b, __u64 mean, __u64 self, __u64 s2)
{
	__u32 zero = 0;
	struct settings *set = bpf_map_lookup_elem(&settings, &zero);
	__u64 untimed, n, room, guess, guess_self, overhead, more = 0;

	if (!s || !b || !set)
		return 0;
	overhead = set->overhead;
	n = b->n + b->outliers;
	if (!n)
		return s2;
	if (b->n < SAMPLE / 4 && s2 < b->spread)
		s2 = b->spread;
	untimed = s->calls - s->entered - b->guessed;
	/* Means are rounded, which is too much of what takes a nanosecond. */
	guess = untimed * mean;
	guess_self = untimed * self;
	if (b->n) {
		guess = b->sum * untimed / b->n;
		guess_self = (__s64)b->self_sum > 0 ? b->self_sum * untimed / b->n : 0;
		guess_self = guess_self > untimed * overhead ? guess_self - untimed * overhead : 0;
	}
	guess = guess > untimed * overhead ? guess - untimed * overhead : 0;
	if (b->outliers) {
		/* The untimed calls were all between timed ones. */
		room = s->last - b->began - b->sum - b->outlier_sum;
		room = (__s64)room > (__s64)guess ? room - guess : 0;
		more = min(b->outlier_sum / n * untimed, room);
	}
	b->guessed += untimed;
	b->guessed_total += guess + more;
	b->guessed_self += guess_self + (guess_self * 2 > guess ? more : 0);
	b->variance += variance_of(untimed, n, s2);
	if (b->outliers) {
		/* There may have been such calls in blocks before, unless they would have been seen as pauses. */
		if (b->outlier_sum <= s->limit)
			more = b->outlier_sum * WEIGHT(s->mask);
		b->variance += square(more >> VARIANCE_SHIFT / 2);
	}
	return b->outliers ? s2 + square(b->outlier_sum) / n : s2;
}

/* Whether the thread was preempted in this block, since this was asked last. */
static __attribute__((noinline)) int preempted(struct block *b)
{
	__u32 now = skep_get_preemptions();

	if (!b || b->preemptions == now)
		return 0;
	b->preemptions = now;
	return 1;
}

/* A pause among untimed calls in which another thread ran: the calls get the share of it that they have of the time before. */
static __attribute__((noinline)) int share(struct stat *s, struct block *b, __u64 gap)
{
	__u32 zero = 0;
	struct settings *set = bpf_map_lookup_elem(&settings, &zero);
	__u64 calls, part = 0;

	if (!s || !b || !set)
		return 0;
	if (!b->n) {
		/* Nothing is known of the first pause in a block. */
		b->began += gap;
		return 0;
	}
	calls = s->calls - s->entered - b->guessed + b->n;
	if (b->mean > set->overhead)
		part = (b->mean - set->overhead) * calls * 256 / (s->last - b->began + 1);
	part = min(part, 256);
	gap = min(gap, 1ULL << 40);
	b->guessed_total += gap * part >> 8;
	if (s->mean_self * 2 > b->mean)
		b->guessed_self += gap * part >> 8;
	b->unsure += (square(gap >> VARIANCE_SHIFT / 2) >> 16) * part * (256 - part);
	/* It says nothing of the rest of the block. */
	b->began += gap;
	return 0;
}

/* Variance of the estimate of a block with this mask, of calls with variance `s2`, in the unit of `variance`. */
static __always_inline __u64 block_variance(__u64 s2, __u64 mask)
{
	__u64 k = WEIGHT(mask) * WEIGHT(mask);

	return s2 < 1ULL << 50 ? s2 * k >> 10 : (s2 >> 10) * k;
}

/* Ends a block and decides whether all calls of the next one are timed. */
static __attribute__((noinline)) int review(struct stat *s, struct block *b)
{
	__u32 zero = 0;
	struct settings *set = bpf_map_lookup_elem(&settings, &zero);
	__u64 mean, self, s2, total, allowed, used = 0, each, sampled;
	__u32 mask, fits = 0, fading;

	if (!s || !b || !set)
		return 0;
	s->always = !set->mask;
	mean = b->mean;
	self = s->mean_self;
	s2 = b->spread;
	sampled = s->next;
	if (b->n) {
		__u64 n = b->n, off;

		s2 = b->squares / n;
		mean = b->sum / n;
		self = (__s64)b->self_sum > 0 ? (b->self_sum + n / 2) / n : 0;
		self = self > set->overhead ? self - set->overhead : 0;
		off = square(mean - b->mean);
		s2 = s2 > off ? s2 - off : 0;
	}
	/* By a 16th in as many calls as a block of the usual mask has. */
	fading = !sampled ? 64 : s->mask < SPARSE_MASK ? 512 / WEIGHT(s->mask & 63) : 16;
	b->spread -= b->spread / fading;
	b->usual -= b->usual / fading;
	s->worst -= s->worst / fading;
	if (sampled)
		s2 = estimate(s, b, mean, self, s2);
	if (s2 > b->spread)
		b->spread = s2;
	b->usual += s2 / fading;
	total = s->total + b->guessed_total;
	/* What takes less than reading the clock does cannot be told within 5 % of itself: there the overhead counts as time. */
	if (mean < 2 * set->overhead)
		total += b->guessed * set->overhead;
	allowed = min(ALLOWED(total), 1ULL << 31);
	mask = set->mask & 63;
	for (int i = 0; i < 5; i++) {
		/* The error that is told is 2.2 standard deviations; and the error must stay within the limit however long it goes on. */
		used = b->variance + block_variance(b->spread, mask);
		fits = mask > 1 && mean < SHORT && used < 1ULL << 60 && 5 * used <= allowed * allowed &&
		       block_variance(b->usual, mask) <= ALLOWED(allowed * mean * (SAMPLE * WEIGHT(mask))) && s->worst * WEIGHT(mask) <= total / 80;
		if (fits)
			break;
		mask >>= 1;
	}
	sampled = fits;
	if (s->next) {
		__u64 change = mean > b->mean ? mean - b->mean : b->mean - mean;

		if (b->outliers || change > b->mean / 4 + 16)
			sampled = 0;
	} else if (s->entered < FIRST) {
		sampled = 0;
	}
	if (s->calls < b->probe && b->pending > total / 64) {
		sampled = 0;
	} else if (b->pending) {
		if (b->pause < b->pending)
			b->pause = min(b->pending, MOST);
		b->pending = 0;
	}
	each = (s->last - b->began) / (b->n + b->outliers + (s->next ? b->n * WEIGHT(s->mask) : 0) + 1);
	if (sampled) {
		s->mask = mask;
		used = b->variance + (1 + SPARSE_VARIANCE) * b->spread;
		if (mask == 63 && s->calls > SPARSE_CALLS && mean < 2 * set->overhead && 8 * used <= allowed * allowed)
			s->mask = SPARSE_MASK;
		s->limit = min(4 * (s->mask + 1ULL) * each + 2ULL * b->pause + SHORT, MOST);
		/* What matters little, also times all calls that it stands for, is an ordinary sample. */
		each = total / (160 * WEIGHT(s->mask));
		s->large = min(8 * mean + SHORT / 4 > each ? 8 * mean + SHORT / 4 : each, MOST);
		draw(s);
	} else {
		s->limit = b->pause;
		s->large = min(b->pending ? b->pending / 4 : 8 * mean, MOST);
		s->next = 0;
	}
	b->mean = min(mean, MOST);
	s->mean_self = self;
	b->began = s->last;
	b->preemptions = skep_get_preemptions();
	b->sum = 0;
	b->self_sum = 0;
	b->squares = 0;
	b->n = 0;
	b->outliers = 0;
	b->outlier_sum = 0;
	return 0;
}

/* A pause before a timed call. Returns whether the block has to end. */
static __attribute__((noinline)) int paused(struct stat *s, struct block *b, __u64 gap, int was_preempted)
{
	if (!s || !b || !s->last)
		return 0;
	if (was_preempted) {
		if (s->next)
			share(s, b, gap);
		return 0;
	}
	if (s->next) {
		/* What matters little is only counted as an error. */
		if (gap < (s->total + b->guessed_total) / 64) {
			b->variance += square(gap >> (VARIANCE_SHIFT / 2 + 1));
			return 0;
		}
		b->pending = gap;
		b->probe = (1 + PROBE) * s->calls;
		return 1;
	}
	if (b->pause < gap)
		b->pause = min(gap, MOST);
	s->limit = b->pause;
	if (b->pending && gap >= b->pending / 4) {
		b->pending = 0;
		b->probe = 0;
		s->large = min(8 * b->mean, MOST);
	}
	return 0;
}

/* What a long call says of others: nothing, the same as all calls, or that the block has to end. */
enum { NOTHING, USUAL, END };

static __attribute__((noinline)) int outlier(struct stat *s, struct block *b, __u64 took, int was_preempted)
{
	if (!s || !b || was_preempted)
		return NOTHING;
	if (s->next) {
		b->outliers++;
		b->outlier_sum += took;
		if (took <= s->limit && took > s->worst)
			s->worst = took;
		return END;
	}
	if (!b->pending || took < b->pending / 4)
		return USUAL;
	/* So the pause was such a call, too. */
	b->guessed_total += b->pending;
	b->guessed_self += b->pending;
	b->variance += square(b->pending >> (VARIANCE_SHIFT / 2 + 2));
	b->pending = 0;
	b->probe = 0;
	s->large = min(8 * b->mean, MOST);
	return USUAL;
}

/* Counts a timed call in its block. */
static __attribute__((noinline)) int learn(struct stat *s, struct block *b, __u64 start, __u64 now, __u64 self)
{
	int end = 0, says = USUAL, was_preempted = 0;
	__u64 gap, took = now - start;

	if (!s || !b)
		return 0;
	gap = start - s->last;
	if (s->last && ((gap > LONG && gap > s->limit) || (took > LONG && took > s->large)))
		was_preempted = preempted(b);
	if (gap > s->limit)
		end = paused(s, b, gap, was_preempted);
	s->last = now;
	if (s->timed <= WARM_UP)
		return 0;
	if (took > s->large)
		says = outlier(s, b, took, was_preempted);
	if (says == END) {
		end = 1;
	} else if (says == USUAL) {
		b->sum += took;
		b->self_sum += self;
		b->squares += square(took - b->mean);
		b->n++;
	}
	if (end || b->n >= (s->next ? SAMPLE : REVIEW)) {
		review(s, b);
	} else if (s->next) {
		draw(s);
	}
	return 0;
}

/* Before a bucket overflows all are halved: they tell proportions. */
static __attribute__((noinline)) int halve(struct block *b)
{
	if (!b)
		return 0;
	for (int i = 0; i < BUCKETS; i++)
		b->hist[i] >>= 1;
	return 0;
}

/* In the cookie of a function that has no run at its return: it is counted, and no frame waits for it (`ENTRY_ONLY`, link/file.rs). */
#define ENTRY_ONLY (1ull << 63)

/* A call that is timed. Not inlined, nor is `returned`: the usual call would save the registers they use. */
static __attribute__((noinline)) int timed(__u64 *ctx, struct thread *t, struct stat *s)
{
	__u64 cookie = bpf_get_attach_cookie(ctx);
	__u32 id = cookie;
	__u64 sp = skep_get_func_sp(ctx), above, call, outer;
	struct frame *f;

	if (!t || !s)
		return 1;
	if (cookie & ENTRY_ONLY) {
		if (s->always & DROP)
			skep_detach_func(ctx);
		return 1;
	}
	s->entered++;
	above = caller_of(t, sp);
	if (above >= LAST) {
		t->lost++;
		return 1;
	}
	call = above + sizeof(struct frame);
	f = frame_of(t, call);
	f->function = id;
	f->sp = sp;
	f->done = t->done;
	outer = s->outer;
	if (!outer || outer >= call || frame_of(t, outer)->function != id) {
		s->outer = call;
	} else {
		s->always = 1;
		s->next = 0;
	}
	t->top = call;
	*bpf_session_cookie(ctx) = call;
	f->start = bpf_get_cpu_time_counter();
	return 0;
}

static __attribute__((noinline)) int returned(__u64 *ctx, struct thread *t)
{
	__u64 now = bpf_get_cpu_time_counter();
	__u64 call = *bpf_session_cookie(ctx), took, self;
	__u32 bucket;
	struct frame *f;
	struct stat *s;
	struct block *b;

	if (!t)
		return 0;
	f = frame_of(t, call);
	if (f->sp != skep_get_func_sp(ctx)) {
		t->lost++;
		return 0;
	}
	s = bpf_map_lookup_elem(&stats, &f->function);
	if (!s)
		return 0;
	took = now - f->start;
	self = took - (t->done - f->done);
	t->done = f->done + took;
	t->top = call - sizeof(struct frame);
	s->self += self;
	s->timed++;
	bucket = log2_of(took);
	if (bucket >= BUCKETS)
		bucket = BUCKETS - 1;
	if (s->outer == call) {
		s->outer = 0;
		s->outermost++;
		s->total += took;
	}
	if (s->always & DROP)
		skep_detach_func(ctx);
	if (s->timed <= FEW) {
		s->first[(s->timed - 1) & (FEW - 1)] = bucket;
		s->last = now;
		return 0;
	}
	b = bpf_map_lookup_elem(&blocks, &f->function);
	if (!b)
		return 0;
	b->hist[bucket] += s->next ? WEIGHT(s->mask) : 1;
	if (b->hist[bucket] > 1U << 31)
		halve(b);
	if (!s->always)
		learn(s, b, f->start, now, self);
	return 0;
}

SEC("fsession.multi/*")
int trace(__u64 *ctx)
{
	__u32 zero = 0, id;
	struct thread *t = bpf_map_lookup_elem(&threads, &zero);
	struct stat *s;

	if (!t)
		return 1;
	if (bpf_session_is_return(ctx))
		return returned(ctx, t);
	id = bpf_get_attach_cookie(ctx);
	s = bpf_map_lookup_elem(&stats, &id);
	if (!s)
		return 1;
	if (++s->calls < s->next) {
		t->done += s->mean_self;
		return 1;
	}
	return timed(ctx, t, s);
}

char _license[] SEC("license") = "Dual MIT/GPL";
