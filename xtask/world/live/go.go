// Goroutines, panics, garbage, native calls; children and signals meanwhile.
package main

import (
	"crypto/sha256"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"sort"
	"strings"
	"syscall"
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
			for n := 0; n < 900000; n++ {
				sum = sha256.Sum256(sum[:])
				count += native(n%7) + len(strings.ToUpper(caught(n)))
			}
			done <- fmt.Sprintf("%x %d", sum, count)
		}()
	}
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, syscall.SIGUSR1)
	for range 50 {
		if err := exec.Command("sh", "-c", "exit 7").Run(); err.Error() != "exit status 7" {
			fmt.Println(err)
		}
		syscall.Kill(os.Getpid(), syscall.SIGUSR1)
		<-signals
	}
	var all []string
	for range 8 {
		all = append(all, <-done)
	}
	sort.Strings(all)
	fmt.Println(strings.Join(all, "\n"))
	os.Exit(5)
}
