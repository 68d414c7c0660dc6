// Exceptions, backtraces and thread ends pass through hooked frames.
#include <cstdio>
#include <cstdlib>
#include <execinfo.h>
#include <pthread.h>
#include <stdexcept>
#include <string>
#include <thread>
#include <unistd.h>
#define N __attribute__((noinline))
static int gone;
struct Guard { int v; explicit Guard(int x) : v(x) {} ~Guard() { gone++; } };
N int leaf(int how) {
    if (how == 1) { void *b[512]; return backtrace(b, 512); }
    if (how == 2) throw 42;
    if (how == 3) throw std::runtime_error("text");
    if (how == 4) pthread_exit((void *)5);
    return 0;
}
N int deep(int n, int how) { Guard g(n); return n ? deep(n - 1, how) + (g.v & 0) : leaf(how); }
N int args(int a, int b, int c, int d, int e, int f, int g, int h, int how) { Guard x(a); if (how == 2) throw a + b + c + d + e + f + g + h; return 0; }
N int again(int n) { try { return deep(n, 3); } catch (std::exception &e) { gone += 1000; throw; } }
N void *ends(void *how) { deep(20, (int)(long)how); return 0; }
N void *waits(void *) { Guard g(0); for (;;) pause(); }
static thread_local std::string slot = "thread";
int main() {
    int seen = deep(50, 1);
    printf("%s\n", seen >= 52 ? "all frames" : "frames missing");
    for (int n : {1, 10, 100}) { gone = 0; try { deep(n, 2); puts("?"); } catch (int e) { printf("%d %d\n", e, gone); } }
    gone = 0; try { again(10); puts("?"); } catch (std::runtime_error &e) { printf("%s %d\n", e.what(), gone); }
    gone = 0; try { args(1, 2, 3, 4, 5, 6, 7, 8, 2); puts("?"); } catch (int e) { printf("%d %d\n", e, gone); }
    pthread_t t; void *r; gone = 0; pthread_create(&t, 0, ends, (void *)4); pthread_join(t, &r); printf("%ld %d\n", (long)r, gone);
    gone = 0; pthread_create(&t, 0, waits, 0); pthread_cancel(t); pthread_join(t, &r); printf("%d %d\n", r == PTHREAD_CANCELED, gone <= 1);
    std::thread([] { slot += "s"; printf("%s\n", slot.c_str()); }).join();
    std::string text; for (int i = 0; i < 100; i++) text += std::to_string(i); printf("%zu\n", text.size());
    return 3;
}
