# Conditions, closures, matrices, patterns.
set.seed(1); sum <- 0
for (n in 1:600) {
  m <- matrix(runif(10000), 100); sum <- sum + sum(solve(m + diag(100) * 50) > 0)
  sum <- sum + sapply(1:600, function(k) tryCatch(if (k %% 3 == 0) stop("x") else nchar(gsub("[0-9]+", "y", paste0("a", k))), error = function(e) 7))[n %% 300 + 1]
}
cat(sum, "\n"); quit(status = 3)
