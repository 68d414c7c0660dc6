;; Continuations, exceptions, big numbers, threads.
(use-modules (ice-9 threads))
(define (work seed)
  (let loop ((n 0) (sum seed))
    (if (= n 200000) sum
        (loop (+ n 1)
              (+ sum (catch 'no (lambda () (if (= 0 (modulo n 3)) (throw 'no n) (string-length (number->string (expt n 20)))))
                       (lambda (key x) (modulo x 7))) (call/cc (lambda (k) (k 1))))))))
(display (map join-thread (map (lambda (seed) (call-with-new-thread (lambda () (work seed)))) '(1 2 3)))) (newline)
(exit 5)
