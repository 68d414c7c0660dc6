using System; using System.Collections.Generic; using System.Diagnostics; using System.Linq; using System.Text.RegularExpressions; using System.Threading.Tasks;
/// Tasks that throw, follow null references, match and allocate; the collector and children meanwhile.
class Program {
    static int Deep(int n) { if (n == 0) throw new InvalidOperationException("bottom"); try { return Deep(n - 1); } finally { GC.KeepAlive(n); } }
    static long Work(int seed) {
        long sum = 0;
        for (int n = 0; n < 35000; n++) {
            try { Deep(n % 20); } catch (InvalidOperationException e) { sum += e.Message.Length; }
            try { string text = n % 2 == 0 ? null : "x" + n; sum += text.Length; } catch (NullReferenceException) { sum += seed; }
            sum += Regex.Replace("k" + n + " " + seed, @"(\w)(\d*)", "$2$1").Length + new List<int>(new int[500]).Count;
        }
        return sum;
    }
    static int Main() {
        var tasks = Enumerable.Range(1, 8).Select(seed => Task.Run(() => Work(seed))).ToArray();
        int statuses = 0;
        for (int n = 0; n < 20; n++) {
            var child = Process.Start(new ProcessStartInfo("sh", "-c \"exit 7\"") { UseShellExecute = false }); child.WaitForExit(); statuses += child.ExitCode;
            GC.Collect();
        }
        Task.WaitAll(tasks); Console.WriteLine(string.Join(" ", tasks.Select(t => t.Result)) + " " + statuses);
        return 9;
    }
}
