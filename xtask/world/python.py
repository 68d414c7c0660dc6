# Threads, children, exceptions, signals, garbage with cycles, regular expressions, files, sockets, SQLite, compression, big numbers.
import collections, concurrent.futures, gc, hashlib, json, os, re, signal, socket, struct, subprocess, sys, threading, time, zlib

def threads():
    lock, total = threading.Lock(), [0]
    def work(n):
        for i in range(300):
            with lock:
                total[0] += i * n
    pool = [threading.Thread(target=work, args=(n,)) for n in range(6)]
    [t.start() for t in pool]; [t.join() for t in pool]
    with concurrent.futures.ThreadPoolExecutor(4) as executor:
        return total[0], sum(executor.map(lambda n: len(re.findall(r"\d+", "a1b22c333" * n)), range(20)))

def children():
    out = []
    for n in range(4):
        done = subprocess.run([sys.executable, "-S", "-c", f"import sys; print({n} ** 20); sys.exit({n})"], capture_output=True)
        out.append((done.returncode, done.stdout.decode().strip()))
    pid = os.fork()
    if pid == 0:
        os._exit(23)
    out.append(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
    killed = subprocess.Popen(["sleep", "100"])
    killed.terminate()
    return out + [killed.wait()]

def exceptions():
    def deep(n):
        if n == 0:
            raise KeyError("bottom")
        try:
            deep(n - 1)
        finally:
            seen.append(n)
    seen, caught = [], 0
    for _ in range(20):
        try:
            deep(50)
        except KeyError:
            caught += 1
    try:
        (lambda f: f(f))(lambda f: f(f))
    except RecursionError as e:
        return caught, sum(seen), type(e).__name__

def signals():
    hits = []
    signal.signal(signal.SIGUSR1, lambda *_: hits.append(1))
    signal.signal(signal.SIGALRM, lambda *_: hits.append(2))
    for _ in range(50):
        os.kill(os.getpid(), signal.SIGUSR1)
    signal.setitimer(signal.ITIMER_REAL, 0.005)
    while 2 not in hits:
        time.sleep(0.001)
    return hits.count(1), hits.count(2)

def garbage():
    class Node: pass
    for _ in range(3000):
        a, b = Node(), Node()
        a.other, b.other = b, a
    del a, b
    return gc.collect() >= 0, gc.collect()

def sockets():
    listener = socket.create_server(("127.0.0.1", 0))
    def serve():
        for _ in range(5):
            peer, _ = listener.accept()
            with peer:
                peer.sendall(peer.recv(1000).upper())
    server = threading.Thread(target=serve); server.start()
    out = []
    for n in range(5):
        with socket.create_connection(listener.getsockname()) as s:
            s.sendall(b"hello %d" % n)
            out.append(s.recv(1000).decode())
    server.join(); listener.close()
    return out

def files():
    with open("numbers", "wb") as f:
        for n in range(2000):
            f.write(struct.pack("<Qd", n, n / 7))
    data = open("numbers", "rb").read()
    packed = zlib.compress(data)
    return len(data), zlib.decompress(packed) == data, hashlib.sha256(data).hexdigest()[:16]

def database():
    try:
        import sqlite3
    except ImportError:
        return "none"
    db = sqlite3.connect("x.db")
    db.create_function("twice", 1, lambda x: 2 * x)
    db.execute("create table t(a integer primary key, b text)")
    db.executemany("insert into t values (?, ?)", ((n, str(n) * 3) for n in range(500)))
    db.commit()
    return db.execute("select count(*), sum(twice(a)), max(b) from t where b like '%7%'").fetchone()

words = collections.Counter(re.findall(r"\w+", "the quick brown fox jumps over the lazy dog the end " * 50))
for name in (threads, children, exceptions, signals, garbage, sockets, files, database):
    print(name.__name__, json.dumps(name()))
print(words.most_common(3), hashlib.md5(str(7 ** 5000).encode()).hexdigest())
print("to stderr", file=sys.stderr)
sys.exit(3)
