# Children, pipes, signals, die across frames, closures, sorting, regular expressions with code, files, sockets, sprintf.
use strict; use warnings; use POSIX (); use Socket; use Time::HiRes 'ualarm';
$| = 1;
my %count; $count{$_}++ for map { lc } ("The quick brown fox jumps over the lazy dog " x 200) =~ /(\w+)/g;
print join(",", map { "$_=$count{$_}" } sort { $count{$b} <=> $count{$a} || $a cmp $b } keys %count), "\n";
for my $n (1 .. 4) {
    my $pid = fork // die; exit $n * 3 unless $pid;
    waitpid $pid, 0; print "child ", $? >> 8, "\n";
}
print "pipe: ", scalar(qx{echo one; echo two | tr a-z A-Z; exit 5}), $? >> 8, "\n";
my $usr = 0; local $SIG{USR1} = sub { $usr++ };
kill USR1 => $$ for 1 .. 100; print "usr1 $usr\n";
my $alarm = 0; local $SIG{ALRM} = sub { $alarm = 1; die "alarm\n" };
eval { ualarm 5000; 1 while !$alarm; }; print "died: $@";
sub deep { my $n = shift; die { depth => $n } if $n == 500; deep($n + 1) } { no warnings; eval { deep(0) } } print "depth $@->{depth}\n";
my @closures = map { my $n = $_; sub { $n * shift } } 1 .. 1000; my $sum = 0; $sum += $closures[$_]->($_) for 0 .. 999; print "$sum\n";
open my $f, ">", "lines" or die; printf $f "%05d %s\n", $_, "x" x ($_ % 50) for 1 .. 5000; close $f;
open $f, "<", "lines" or die; my ($lines, $bytes) = (0, 0); while (<$f>) { $lines++; $bytes += length } print "$lines $bytes\n";
socketpair my $a, my $b, AF_UNIX, SOCK_STREAM, PF_UNSPEC or die;
if (!fork) { close $a; while (sysread $b, my $x, 100) { syswrite $b, uc $x } POSIX::_exit(0) } close $b;
for (1 .. 20) { syswrite $a, "ping $_"; sysread $a, my $x, 100; print $x, $_ < 20 ? " " : "\n" } close $a; wait;
my $nested = qr/(\((?:[^()]++|(?1))*+\))/; print "(a(b)(c(d))e)" =~ $nested ? "$1\n" : "no\n";
(my $text = "a-b-c" x 500) =~ s/(\w)-(\w)/$2 . length($1)/ge; print length $text, "\n";
print STDERR "to stderr\n"; exit 4;
