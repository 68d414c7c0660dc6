# Vectors, conditions, closures, regular expressions, linear models, garbage collection, files, a child.
set.seed(1); x <- rnorm(500); y <- 2 * x + rnorm(500)
print(round(coef(lm(y ~ x)), 6)); print(summary(x), digits = 4)
deep <- function(n) if (n == 0) stop("bottom") else deep(n - 1)
n <- 0; for (i in 1:50) n <- n + tryCatch(deep(50), error = function(e) nchar(conditionMessage(e)), finally = 1); print(n)
print(sum(sapply(1:2000, function(i) i %% 7))); print(table(strsplit(gsub("[^a-z]", "", "the quick brown fox jumps"), "")[[1]]))
m <- matrix(1:400 / 7, 20); print(round(det(m[1:5, 1:5] + diag(5)), 6)); invisible(gc())
writeLines(as.character(1:3000), "x"); print(sum(as.numeric(readLines("x")))); print(system("echo from a child", intern = TRUE))
message("to stderr"); quit(status = 5)
