// also: clang-14 clang-16
/* Configuration values of every kind. */
#include "fixture.h"

enum libbpf_tristate { TRI_NO = 0, TRI_YES = 1, TRI_MODULE = 2 };

extern int LINUX_KERNEL_VERSION __kconfig;
extern unsigned long CONFIG_HZ __kconfig;
extern _Bool CONFIG_BPF __kconfig;
extern enum libbpf_tristate CONFIG_IPV6 __kconfig;
extern char CONFIG_CC_VERSION_TEXT[10] __kconfig;
extern __u16 CONFIG_NO_SUCH_THING __kconfig __weak;
extern char CONFIG_LOCALVERSION_CHAR __kconfig __weak;

SEC("socket")
int all(void *ctx)
{
	return LINUX_KERNEL_VERSION + CONFIG_HZ + CONFIG_BPF + CONFIG_IPV6 + CONFIG_CC_VERSION_TEXT[0] + CONFIG_NO_SUCH_THING +
	       CONFIG_LOCALVERSION_CHAR;
}

SEC("socket")
int weak_only(void *ctx)
{
	return CONFIG_NO_SUCH_THING;
}

char _license[] SEC("license") = "GPL";
