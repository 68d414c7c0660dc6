// Goroutines, panics, garbage, C calls.
package main

// static int twice(int n) { return 2 * n; }
import "C"
import (
	"crypto/sha256"
	"fmt"
	"os"
	"sort"
	"strings"
)

func caught(n int) (text string) {
	defer func() { text = fmt.Sprint(recover()) }()
	panic(n)
}

func main() {
	done := make(chan string)
	for seed := 0; seed < 8; seed++ {
		go func() {
			sum := [32]byte{byte(seed)}
			count := 0
			for n := 0; n < 200000; n++ {
				sum = sha256.Sum256(sum[:])
				count += int(C.twice(C.int(n%7))) + len(strings.ToUpper(caught(n)))
			}
			done <- fmt.Sprintf("%x %d", sum, count)
		}()
	}
	var all []string
	for range 8 {
		all = append(all, <-done)
	}
	sort.Strings(all)
	fmt.Println(strings.Join(all, "\n"))
	os.Exit(5)
}
