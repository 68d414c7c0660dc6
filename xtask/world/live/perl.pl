# Substitutions with code, errors, children, an alarm.
my ($sum, $rings) = (0, 0);
$SIG{ALRM} = sub { $rings = 1; alarm 1 };
alarm 1;
for my $i (1 .. 1_500_000) {
  my $text = "abc$i"; $text =~ s/(\d+)/$1*2/e; $sum += length $text;
  eval { die "no\n" if $i % 3 == 0; };
  if ($i % 30_000 == 0) { my $child = fork; exit 7 unless $child; waitpid $child, 0; $sum += $? >> 8; }
}
print "$sum\n"; exit 5;
