// Workers that hash and throw; promises, timers and children meanwhile.
const { Worker, isMainThread, parentPort, workerData } = require('worker_threads');
if (isMainThread) {
  const { execFileSync } = require('child_process');
  const workers = [0, 1, 2].map(seed => new Promise((ok, no) => { const w = new Worker(__filename, { workerData: seed }); w.on('message', ok); w.on('error', no); }));
  let ticks = 0; const timer = setInterval(() => { if (ticks++ < 10) execFileSync('true'); }, 20);
  Promise.all(workers).then(done => { clearInterval(timer); console.log(done.join()); process.exitCode = 6; });
} else {
  const { createHash } = require('crypto'); let digest = '';
  for (let n = 0; n < 1500000; n++) {
    digest = createHash('sha256').update(digest + workerData).digest('hex');
    try { if (n % 5 === 0) throw new Error(n); } catch (e) { }
    if (n % 5000 === 0) JSON.parse(JSON.stringify({ digest, many: Array(100).fill(n) }));
  }
  parentPort.postMessage(digest);
}
