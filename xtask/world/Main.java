import java.io.*; import java.net.*; import java.nio.file.*; import java.util.*; import java.util.concurrent.*; import java.util.regex.*; import java.util.stream.*;
/** Threads, children, exceptions, garbage, regular expressions, files, sockets; hot enough for the compilers. */
public class Main {
    static int finallies;
    static void deep(int n) { if (n == 0) throw new IllegalStateException("bottom"); try { deep(n - 1); } finally { finallies++; } }
    static int forever(int n) { return forever(n + 1) + 1; }
    public static void main(String[] args) throws Exception {
        ExecutorService pool = Executors.newFixedThreadPool(6); List<Future<Long>> sums = new ArrayList<>();
        for (int n = 1; n <= 12; n++) { final int m = n; sums.add(pool.submit(() -> { long s = 0; for (int i = 0; i < 300000; i++) s = (s * 31 + i * m) % 1000003; return s; })); }
        for (Future<Long> s : sums) System.out.print(s.get() + " "); System.out.println(); pool.shutdown();
        for (int i = 0; i < 200; i++) try { deep(100); } catch (IllegalStateException e) { } System.out.println(finallies);
        try { forever(0); } catch (StackOverflowError e) { System.out.println("StackOverflowError"); }
        int nulls = 0; for (int i = 0; i < 5000; i++) try { String s = i % 2 == 0 ? null : "x"; nulls += s.length() - 1; } catch (NullPointerException e) { nulls++; } System.out.println(nulls);
        List<Object> keep = new ArrayList<>(); for (int i = 0; i < 400; i++) { byte[] b = new byte[100000]; if (i % 40 == 0) keep.add(b); } System.gc(); System.out.println(keep.size());
        for (int i = 0; i < 3; i++) { Process p = new ProcessBuilder("sh", "-c", "echo child " + i + "; exit " + (i + 3)).start(); System.out.println(new BufferedReader(new InputStreamReader(p.getInputStream())).readLine() + " " + p.waitFor()); }
        try (ServerSocket server = new ServerSocket(0, 10, InetAddress.getLoopbackAddress())) {
            Thread t = new Thread(() -> { try { for (int i = 0; i < 5; i++) try (Socket s = server.accept()) { String l = new BufferedReader(new InputStreamReader(s.getInputStream())).readLine(); s.getOutputStream().write((l.toUpperCase() + "\n").getBytes()); } } catch (IOException e) { System.out.println(e); } }); t.start();
            for (int i = 0; i < 5; i++) try (Socket s = new Socket(InetAddress.getLoopbackAddress(), server.getLocalPort())) { s.getOutputStream().write(("hello " + i + "\n").getBytes()); System.out.println(new BufferedReader(new InputStreamReader(s.getInputStream())).readLine()); }
            t.join();
        }
        Files.write(Path.of("x"), IntStream.range(0, 5000).mapToObj(Integer::toString).collect(Collectors.toList())); System.out.println(Files.lines(Path.of("x")).mapToInt(Integer::parseInt).sum());
        System.out.println(Pattern.compile("(\\w)(\\w*)").matcher("the quick brown fox").replaceAll("$2$1") + " " + new java.math.BigInteger("7").pow(900).mod(java.math.BigInteger.valueOf(1000003)));
        System.err.println("to stderr"); System.exit(9);
    }
}
