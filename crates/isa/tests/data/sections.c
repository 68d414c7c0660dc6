/* Prints what libbpf makes of section names. Written for `sections.libbpf.txt`:
 *
 *   cc sections.c -lbpf -o sections && ./sections > sections.libbpf.txt
 */
#include <bpf/libbpf.h>
#include <stdarg.h>
#include <stdio.h>

static const char *const names[] = {
	"socket", "sk_reuseport/migrate", "sk_reuseport", "kprobe", "uprobe", "uprobe.s", "kretprobe", "uretprobe", "uretprobe.s",
	"kprobe.multi", "kretprobe.multi", "kprobe.session", "uprobe.multi", "uretprobe.multi", "uprobe.session", "uprobe.multi.s",
	"uretprobe.multi.s", "uprobe.session.s", "ksyscall", "kretsyscall", "usdt", "usdt.s", "tc/ingress", "tc/egress", "tcx/ingress",
	"tcx/egress", "tcx", "tc", "classifier", "action", "netkit/primary", "netkit/peer", "netkit", "tracepoint", "tp", "raw_tracepoint",
	"raw_tp", "raw_tracepoint.w", "raw_tp.w", "tp_btf", "fentry", "fmod_ret", "fexit", "fentry.s", "fmod_ret.s", "fexit.s", "fsession",
	"fsession.s", "freplace", "lsm", "lsm.s", "lsm_cgroup", "iter", "iter.s", "syscall", "xdp.frags/devmap", "xdp/devmap",
	"xdp.frags/cpumap", "xdp/cpumap", "xdp.frags", "xdp", "perf_event", "lwt_in", "lwt_out", "lwt_xmit", "lwt_seg6local", "lwt",
	"sockops", "sk_skb/stream_parser", "sk_skb/stream_verdict", "sk_skb/verdict", "sk_skb", "sk_msg", "lirc_mode2", "flow_dissector",
	"cgroup_skb/ingress", "cgroup_skb/egress", "cgroup_skb", "cgroup/skb", "cgroup/sock_create", "cgroup/sock_release", "cgroup/sock",
	"cgroup/post_bind4", "cgroup/post_bind6", "cgroup/bind4", "cgroup/bind6", "cgroup/connect4", "cgroup/connect6",
	"cgroup/connect_unix", "cgroup/sendmsg4", "cgroup/sendmsg6", "cgroup/sendmsg_unix", "cgroup/recvmsg4", "cgroup/recvmsg6",
	"cgroup/recvmsg_unix", "cgroup/getpeername4", "cgroup/getpeername6", "cgroup/getpeername_unix", "cgroup/getsockname4",
	"cgroup/getsockname6", "cgroup/getsockname_unix", "cgroup/sysctl", "cgroup/getsockopt", "cgroup/setsockopt", "cgroup/dev",
	"cgroup", "struct_ops", "struct_ops.s", "sk_lookup", "netfilter", "maps", "license", ".text", "fmod_ret.x", "XDP", "kprobe.s",
};

/* Plain, with a target, longer without a slash, with a slash alone. */
static const char *const forms[] = { "%s", "%s/a/b", "%sx", "%s/", "%s+", "%s.", " %s", "%s/*" };

static int quiet(enum libbpf_print_level level, const char *format, va_list args)
{
	return 0;
}

int main(void)
{
	libbpf_set_print(quiet);
	printf("# libbpf %s\n", libbpf_version_string());
	for (unsigned i = 0; i < sizeof(names) / sizeof(*names); i++)
		for (unsigned f = 0; f < sizeof(forms) / sizeof(*forms); f++) {
			enum bpf_prog_type type;
			enum bpf_attach_type attach;
			char name[64];

			snprintf(name, sizeof(name), forms[f], names[i]);
			if (libbpf_prog_type_by_name(name, &type, &attach))
				printf("-\t%s\n", name);
			else
				printf("%d %d\t%s\n", type, attach, name);
		}
	return 0;
}
