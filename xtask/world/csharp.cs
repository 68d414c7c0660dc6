using System; using System.Collections.Generic; using System.IO; using System.Linq; using System.Text.RegularExpressions; using System.Threading; using System.Threading.Tasks; using System.Diagnostics;
/// Threads, tasks, exceptions, null references, garbage, regular expressions, files, a child.
class Program {
    static int finallies;
    static void Deep(int n) { if (n == 0) throw new InvalidOperationException("bottom"); try { Deep(n - 1); } finally { finallies++; } }
    static int Main() {
        var sums = Enumerable.Range(1, 8).Select(n => Task.Run(() => { long s = 0; for (int i = 0; i < 100000; i++) s = (s * 31 + i * n) % 1000003; return s; })).ToArray();
        Task.WaitAll(sums); Console.WriteLine(string.Join(" ", sums.Select(t => t.Result)));
        for (int i = 0; i < 50; i++) try { Deep(50); } catch (InvalidOperationException) { } Console.WriteLine(finallies);
        int nulls = 0; for (int i = 0; i < 200; i++) try { string s = i % 2 == 0 ? null : "x"; nulls += s.Length - 1; } catch (NullReferenceException) { nulls++; } Console.WriteLine(nulls);
        for (int i = 0; i < 20000; i++) new List<int>(new int[100]); GC.Collect(); Console.WriteLine(GC.CollectionCount(0) > 0);
        Console.WriteLine(Regex.Replace("the quick brown fox", @"(\w)(\w*)", "$2$1"));
        var p = Process.Start(new ProcessStartInfo("sh", "-c \"echo from a child; exit 7\"") { RedirectStandardOutput = true, UseShellExecute = false }); Console.Write(p.StandardOutput.ReadToEnd()); p.WaitForExit(); Console.WriteLine(p.ExitCode);
        File.WriteAllLines("x", Enumerable.Range(0, 3000).Select(i => i.ToString())); Console.WriteLine(File.ReadAllLines("x").Sum(int.Parse));
        Console.Error.WriteLine("to stderr"); return 9;
    }
}
