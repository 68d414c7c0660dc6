# Addresses, groups, hold space, children.
s/([0-9]+) line ([0-9]+)/\2:\1/
/:([0-9])\1+ /H
/^[0-9]*77:/s/$/ seventy-seven/
0~20000s/.*/echo &/e
y/abc/xyz/
0~1000p
${g;s/\n/+/g;p;q7}
