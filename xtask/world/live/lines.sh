# Many lines for text tools and archivers, the same each time; `$1` says how many.
awk -v n="$1" 'BEGIN { for (i = 0; i < n; i++) print i * 7919 % 1000003, "line", i, substr("abcdefghijklmnopqrstuvwxyz", i % 20, 6) }' > lines
