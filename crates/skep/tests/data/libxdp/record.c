// SPDX-License-Identifier: MIT OR Apache-2.0
/* Prints what libxdp reads of the programs of an object: name, priority, verdicts that go on. No kernel takes part in that.
 *
 *   gcc -O2 record.c -o record -lxdp -lbpf && ./record configs.bpf.o > configs.libxdp.txt
 *
 * (Debian: libxdp-dev; this was 1.3.1.) */
#include <stdio.h>
#include <bpf/libbpf.h>
#include <xdp/libxdp.h>

int main(int argc, char **argv)
{
	struct bpf_object *object = argc > 1 ? bpf_object__open_file(argv[1], NULL) : NULL;
	struct bpf_program *p;
	if (!object)
		return 1;
	bpf_object__for_each_program(p, object) {
		/* A program is taken from an object of its own: libxdp keeps that. */
		DECLARE_LIBXDP_OPTS(xdp_program_opts, opts, .open_filename = argv[1], .prog_name = bpf_program__name(p));
		struct xdp_program *program = xdp_program__create(&opts);
		if (libxdp_get_error(program)) {
			printf("%s refused\n", bpf_program__name(p));
			continue;
		}
		printf("%s %u", bpf_program__name(p), xdp_program__run_prio(program));
		for (unsigned verdict = 0; verdict < 5; verdict++)
			printf(" %d", xdp_program__chain_call_enabled(program, verdict));
		puts("");
		xdp_program__close(program);
	}
	return 0;
}
