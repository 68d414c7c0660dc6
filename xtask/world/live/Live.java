// Threads that throw, allocate and collect.
import java.util.*;
import java.util.concurrent.*;

public class Live {
  static long thrown(int n) {
    try { if (n % 7 == 0) throw new RuntimeException("x" + n); return n; } catch (RuntimeException e) { return e.getMessage().hashCode(); }
  }
  public static void main(String[] args) throws Exception {
    ExecutorService pool = Executors.newFixedThreadPool(6);
    List<Future<Long>> results = new ArrayList<>();
    for (int t = 0; t < 12; t++) {
      final int seed = t;
      results.add(pool.submit(() -> {
        long sum = 0; Map<String, Integer> counts = new HashMap<>();
        for (int n = 0; n < 6_000_000; n++) { sum += thrown(n + seed); counts.merge("k" + n % 1000, 1, Integer::sum); if (n % 2_000_000 == 0) System.gc(); }
        return sum + counts.size();
      }));
    }
    long sum = 0; for (Future<Long> result : results) sum += result.get();
    System.out.println(sum); pool.shutdown(); System.exit(4);
  }
}
