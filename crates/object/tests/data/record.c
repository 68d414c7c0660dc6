/* Prints what libbpf makes of an object: maps, and instructions after relocation. Written for the `.libbpf.txt` files.
 *
 *   cc record.c -lbpf -o record && ./record NAME.bpf.o [TARGET.bpf.o] > NAME.libbpf.txt    (as root: maps are created)
 */
#include <bpf/bpf.h>
#include <bpf/libbpf.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int quiet(enum libbpf_print_level level, const char *format, va_list args)
{
	return 0;
}

static const char *map_of(struct bpf_object *o, int fd)
{
	struct bpf_map *m;

	bpf_object__for_each_map(m, o)
		if (bpf_map__fd(m) == fd)
			return bpf_map__name(m);
	return "?";
}

int main(int argc, char **argv)
{
	LIBBPF_OPTS(bpf_object_open_opts, opts,
		    .kconfig = "CONFIG_HZ=0xfa\nCONFIG_BPF=y\nCONFIG_IPV6=m\nCONFIG_CC_VERSION_TEXT=\"gcc (Debian 14)\"\n");
	struct bpf_object *o;
	struct bpf_program *p;
	struct bpf_map *m;

	opts.btf_custom_path = argc > 2 ? argv[2] : NULL;
	if (!getenv("VERBOSE"))
		libbpf_set_print(quiet);
	o = bpf_object__open_file(argv[1], &opts);
	if (!o)
		return 1;
	bpf_object__for_each_map(m, o) {
		size_t size = 0;
		const unsigned char *data = bpf_map__initial_value(m, &size);

		printf("map %s type=%d key=%u value=%u entries=%u flags=%#x extra=%#llx pinned=%d key_type=%u value_type=%u data=",
		       bpf_map__name(m), bpf_map__type(m), bpf_map__key_size(m), bpf_map__value_size(m), bpf_map__max_entries(m),
		       bpf_map__map_flags(m), (unsigned long long)bpf_map__map_extra(m), bpf_map__pin_path(m) != NULL, bpf_map__btf_key_type_id(m),
		       bpf_map__btf_value_type_id(m));
		for (size_t i = 0; data && i < size; i++)
			printf("%02x", data[i]);
		printf("\n");
		bpf_map__set_pin_path(m, NULL); /* there may be no file system to pin to */
	}
	bpf_object__for_each_program(p, o)
		bpf_program__set_autoload(p, strncmp(bpf_program__name(p), "bad_", 4) != 0);
	/* Instructions are there even when the kernel refuses a program. */
#if LIBBPF_MAJOR_VERSION > 1 || LIBBPF_MINOR_VERSION >= 6
	bpf_object__prepare(o);
#else
	bpf_object__load(o);
#endif
	bpf_object__for_each_program(p, o) {
		const struct bpf_insn *insns = bpf_program__insns(p);

		if (!bpf_program__autoload(p))
			continue;

		printf("program %s section=%s type=%d attach=%d\n", bpf_program__name(p), bpf_program__section_name(p), bpf_program__type(p),
		       bpf_program__expected_attach_type(p));
		for (size_t i = 0; i < bpf_program__insn_cnt(p); i++) {
			struct bpf_insn insn = insns[i];
			unsigned long long raw;
			const char *map = "";

			if (insn.code == 0x18 && (insn.src_reg == BPF_PSEUDO_MAP_FD || insn.src_reg == BPF_PSEUDO_MAP_VALUE)) {
				map = map_of(o, insn.imm);
				insn.imm = 0;
			}
			memcpy(&raw, &insn, 8);
			printf("%016llx %s\n", raw, map);
		}
	}
	return 0;
}
