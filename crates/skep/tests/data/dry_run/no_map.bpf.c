/* A program that is safe, beside a map that cannot be made: its flags are those of another type. */
#define SEC(name) __attribute__((section(name), used))
#define __uint(name, val) int(*name)[val]
#define __type(name, val) typeof(val) *name

struct { __uint(type, 2); __uint(max_entries, 4); __uint(map_flags, 1); __type(key, int); __type(value, int); } odd SEC(".maps");

SEC("xdp")
int passes(void *ctx)
{
	return 2;
}

char LICENSE[] SEC("license") = "GPL";
