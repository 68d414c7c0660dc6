# Threads that hash, match and throw; children meanwhile.
import hashlib, re, subprocess, sys, threading
done = []
def work(seed):
    digest = b''
    for n in range(120000):
        digest = hashlib.sha256(digest + bytes([seed])).digest()
        re.sub('[0-9a-f]{3}', lambda m: m.group(0)[::-1], digest.hex())
        try:
            raise ValueError(n)
        except ValueError:
            pass
    done.append(digest.hex())
threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
for thread in threads: thread.start()
for n in range(20): subprocess.run(['/bin/true'], check=True)
for thread in threads: thread.join()
print(sorted(done)); sys.exit(3)
