// Workers, children, promises, timers, exceptions, garbage, regular expressions, sockets, streams, crypto.
const { Worker, isMainThread, parentPort, workerData } = require('worker_threads');
if (!isMainThread) {
  let sum = 0; for (let i = 0; i < 200000; i++) sum = (sum * 31 + i * workerData) % 1000003;
  parentPort.postMessage(sum);
} else (async () => {
  const { execFileSync, spawnSync } = require('child_process'), net = require('net'), zlib = require('zlib'), crypto = require('crypto'), fs = require('fs');
  const sums = await Promise.all([1, 2, 3, 4].map(n => new Promise((ok, no) => { const w = new Worker(__filename, { workerData: n }); w.on('message', ok); w.on('error', no); })));
  console.log(sums.join());
  const fib = n => n < 2 ? n : fib(n - 1) + fib(n - 2); console.log(fib(24));
  let caught = 0; const deep = n => { if (n === 0) throw new Error('bottom'); try { deep(n - 1); } finally { caught++; } };
  for (let i = 0; i < 50; i++) try { deep(100); } catch (e) { } console.log(caught);
  try { (function f() { f(); })(); } catch (e) { console.log(e.constructor.name); }
  let keep = []; for (let i = 0; i < 200000; i++) { keep[i % 1000] = { i, text: 'x' + i }; } console.log(keep.length);
  console.log(execFileSync('echo', ['from a child']).toString().trim(), spawnSync('sh', ['-c', 'exit 7']).status);
  const zipped = zlib.gzipSync(Buffer.alloc(100000, 'abc')); console.log(zlib.gunzipSync(zipped).length, crypto.createHash('sha256').update('x').digest('hex').slice(0, 16));
  await new Promise(done => {
    let left = 5; const server = net.createServer(s => s.on('data', d => s.end(d.toString().toUpperCase()))).listen(0, '127.0.0.1', async () => {
      for (let i = 0; i < 5; i++) await new Promise(next => { const c = net.connect(server.address().port, '127.0.0.1', () => c.write('hello ' + i)); c.on('data', d => console.log(d.toString())); c.on('close', () => { if (--left === 0) server.close(done); next(); }); });
    });
  });
  await fs.promises.writeFile('x', JSON.stringify([...Array(2000).keys()])); console.log(JSON.parse(await fs.promises.readFile('x')).reduce((a, b) => a + b));
  console.log('the quick brown fox'.replace(/(\w)(\w*)/g, (_, a, b) => b + a.toUpperCase()), (2n ** 500n % 1000007n).toString());
  process.on('SIGUSR2', () => { console.log('usr2'); console.error('to stderr'); process.exitCode = 9; clearInterval(timer); });
  const timer = setInterval(() => { }, 1000); process.kill(process.pid, 'SIGUSR2');
})();
