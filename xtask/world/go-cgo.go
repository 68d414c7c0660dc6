package main

// static int fib(int n) { return n < 2 ? n : fib(n - 1) + fib(n - 2); }
import "C"

func native(n int) int { return int(C.fib(C.int(n))) }
