// Goroutines, channels, panics, garbage, children, files, sockets, regular expressions; with `-tags cgo` also calls into C.
package main

import (
	"bufio"
	"crypto/sha256"
	"fmt"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"regexp"
	"runtime"
	"sort"
	"strings"
	"sync"
	"syscall"
)

//go:noinline
func deep(n int) int {
	var pad [64]byte
	pad[n%64] = byte(n)
	if n == 0 {
		return int(pad[0])
	}
	return deep(n-1) + int(pad[n%64])%2
}

func recovered(n int) (err error) {
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("recovered %v", r)
		}
	}()
	var list []int
	return fmt.Errorf("%d", list[n])
}

type node struct{ left, right *node }

func tree(n int) *node {
	if n == 0 {
		return &node{}
	}
	return &node{tree(n - 1), tree(n - 1)}
}

func (t *node) size() int {
	if t == nil {
		return 0
	}
	return 1 + t.left.size() + t.right.size()
}

func main() {
	var wait sync.WaitGroup
	results := make(chan int, 100)
	for n := 0; n < 100; n++ {
		wait.Add(1)
		go func(n int) { defer wait.Done(); results <- deep(n * 10) }(n)
	}
	wait.Wait()
	close(results)
	var all []int
	for r := range results {
		all = append(all, r)
	}
	sort.Ints(all)
	fmt.Println(all[0], all[99], len(all))
	for i := 0; i < 20; i++ {
		if recovered(i) == nil {
			fmt.Println("not recovered")
		}
	}
	sizes := 0
	for i := 0; i < 20; i++ {
		sizes += tree(10).size()
		runtime.GC()
	}
	fmt.Println(sizes)
	out, err := exec.Command("sh", "-c", "echo from a child; exit 7").Output()
	fmt.Print(string(out), err, "\n")
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		panic(err)
	}
	go func() {
		for {
			c, err := listener.Accept()
			if err != nil {
				return
			}
			go func() { defer c.Close(); l, _ := bufio.NewReader(c).ReadString('\n'); fmt.Fprint(c, strings.ToUpper(l)) }()
		}
	}()
	for i := 0; i < 5; i++ {
		c, err := net.Dial("tcp", listener.Addr().String())
		if err != nil {
			panic(err)
		}
		fmt.Fprintf(c, "hello %d\n", i)
		l, _ := bufio.NewReader(c).ReadString('\n')
		fmt.Print(l)
		c.Close()
	}
	got := make(chan os.Signal, 1)
	signal.Notify(got, syscall.SIGUSR1)
	syscall.Kill(os.Getpid(), syscall.SIGUSR1)
	fmt.Println(<-got)
	os.WriteFile("x", []byte(strings.Repeat("line\n", 1000)), 0o644)
	data, _ := os.ReadFile("x")
	fmt.Printf("%d %x\n", len(data), sha256.Sum256(data))
	fmt.Println(regexp.MustCompile(`(\w)(\w*)`).ReplaceAllString("the quick brown fox", "$2$1"), native(20))
	fmt.Fprintln(os.Stderr, "to stderr")
	os.Exit(9)
}
