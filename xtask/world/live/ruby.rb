# Threads, exceptions, patterns, garbage, children.
sums = 4.times.map { |seed| Thread.new {
  sum = 0
  240_000.times { |n|
    sum += "k#{n}#{seed}".gsub(/\d+/) { |d| (d.to_i * 2).to_s }.length
    begin; raise ArgumentError, n.to_s if n % 5 == 0; rescue ArgumentError => e; sum += e.message.length; end
    (IO.popen('true').close; GC.start) if n % 40_000 == 0
  }
  sum } }.map(&:value)
p sums; exit 4
