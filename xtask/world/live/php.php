<?php // Exceptions, generators, patterns, collector.
function numbers($n) { for ($i = 0; $i < $n; $i++) yield $i; }
$sum = 0;
foreach (numbers(12000000) as $i) {
  try { if ($i % 5 == 0) throw new Exception("x$i"); $sum += strlen(preg_replace('/\d+/', 'y', "a$i")); }
  catch (Exception $e) { $sum += strlen($e->getMessage()); }
  if ($i % 100000 == 0) { $a = new stdClass; $a->me = $a; unset($a); gc_collect_cycles(); }
}
echo "$sum\n"; exit(8);
