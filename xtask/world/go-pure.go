package main

func native(n int) int {
	if n < 2 {
		return n
	}
	return native(n-1) + native(n-2)
}
