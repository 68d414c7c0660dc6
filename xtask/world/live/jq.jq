# Groups, patterns, reductions, errors that are caught and one that is not.
[range(90000) | {a: ., b: (. * 7919 % 503 | tostring)}] as $all
| ($all | group_by(.b) | map(length) | [min, max, add]),
  ([$all[].b | select(test("7+$"))] | length),
  (reduce $all[] as $x ({}; .[$x.b] += $x.a) | to_entries | map(.value) | max),
  ([$all[].a | try (if . % 3 == 0 then error("x") else 1 end) catch 2] | add),
  $all.a
