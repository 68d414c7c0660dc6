<?php
// Exceptions through frames, generators, closures, references, sorting, regular expressions, children, files, serialization.
function deep($n) { if ($n == 0) throw new RuntimeException("bottom"); try { return deep($n - 1); } finally { $GLOBALS['finally']++; } }
$finally = 0; for ($i = 0; $i < 20; $i++) try { deep(100); } catch (RuntimeException $e) { } echo $finally, " ", $e->getMessage(), "\n";
function numbers($n) { for ($i = 0; $i < $n; $i++) $x = yield $i => $i * $i; } $sum = 0; foreach (numbers(5000) as $k => $v) $sum += $v - $k; echo $sum, "\n";
$list = range(1, 3000); usort($list, fn($a, $b) => ($a * 7919 % 3001) <=> ($b * 7919 % 3001)); echo implode(",", array_slice($list, 0, 5)), "\n";
echo preg_replace_callback('/(\w)(\w*)/', fn($m) => $m[2] . strtoupper($m[1]), str_repeat("the quick brown fox ", 3)), "\n";
for ($i = 0; $i < 2000; $i++) { $a = new stdClass; $b = new stdClass; $a->b = $b; $b->a = $a; } unset($a, $b); echo gc_collect_cycles() > 0 ? "collected\n" : "none\n";
exec("echo child; exit 7", $out, $status); echo $out[0], " ", $status, "\n";
$p = proc_open(["sort", "-r"], [["pipe", "r"], ["pipe", "w"]], $pipes); fwrite($pipes[0], "a\nc\nb\n"); fclose($pipes[0]); echo str_replace("\n", " ", stream_get_contents($pipes[1])), proc_close($p), "\n";
file_put_contents("x", serialize(array_map(null, range(1, 1000), range(2, 1001)))); echo count(unserialize(file_get_contents("x"))), " ", md5_file("x"), "\n";
echo json_encode(["pi" => M_PI, "nested" => ["a" => [1, 2, 3]], "text" => "caf\u{e9}"]), " ", crc32(str_repeat("x", 10000)), "\n";
$server = stream_socket_server("tcp://127.0.0.1:0"); $name = stream_socket_get_name($server, false);
for ($i = 0; $i < 5; $i++) { $c = stream_socket_client("tcp://$name"); $s = stream_socket_accept($server); fwrite($c, "ping $i\n"); fwrite($s, strtoupper(fgets($s))); echo fgets($c); }
fwrite(STDERR, "to stderr\n"); exit(8);
