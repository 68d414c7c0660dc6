# Threads, fibers, children, exceptions, ensure, throw, signals, garbage collection, regular expressions, sockets, big numbers.
require "socket"
$stdout.sync = true
counts = Hash.new(0); lock = Mutex.new
8.times.map { |n| Thread.new { 500.times { |i| lock.synchronize { counts[i % 7] += n } } } }.each(&:join)
p counts.sort
queue = Queue.new; producer = Thread.new { 300.times { |i| queue << i * i }; queue << nil }
sum = 0; while (x = queue.pop) do sum += x end; producer.join; p sum
fiber = Fiber.new { 100.times { |i| Fiber.yield i }; :done }; p 101.times.map { fiber.resume }.last(2)
3.times { |n| pid = fork { exit! n + 40 }; Process.wait pid; p $?.exitstatus }
p `echo from a shell; exit 9`, $?.exitstatus
def deep(n) = n.zero? ? raise(ArgumentError, "bottom") : deep(n - 1)
20.times { begin; deep(300); rescue ArgumentError => e; e.message; ensure; counts[:ensured] += 1; end }; p counts[:ensured]
p catch(:found) { 1.upto(1000) { |i| throw :found, i if i * i > 5000 } }
begin; def forever(n) = forever(n + 1) + 1; forever(0); rescue SystemStackError => e; p e.class; end
hits = 0; trap("USR1") { hits += 1 }; 20.times { Process.kill("USR1", Process.pid); sleep 0.001 }; p hits > 0
200.times { Array.new(1000) { |i| "string #{i}" } }; GC.start; GC.compact rescue nil; p GC.count > 0
p "the quick brown fox jumps over the lazy dog".scan(/(\w)(\w+)/).map { |a, b| b + a }.join(" ")
server = TCPServer.new("127.0.0.1", 0)
Thread.new { 5.times { c = server.accept; c.puts c.gets.upcase; c.close } }
5.times { |i| s = TCPSocket.new("127.0.0.1", server.addr[1]); s.puts "hello #{i}"; print s.gets; s.close }
p (2**2000).digits.sum, (1..300).reduce(:*).to_s.size
File.write("x", (1..5000).map(&:to_s).join("\n")); p File.foreach("x").sum(&:to_i)
warn "to stderr"; exit 5
