-- Laziness, exceptions, threads with MVars, STM-free sharing, maps, the collector, a file.
import Control.Concurrent
import Control.Exception
import Control.Monad
import Data.List (foldl', sort)
import System.Exit
import System.IO
import System.Mem

fib :: Int -> Integer
fib n = if n < 2 then toInteger n else fib (n - 1) + fib (n - 2)

primes :: [Int]
primes = sieve [2 ..] where sieve (p : xs) = p : sieve [x | x <- xs, x `mod` p /= 0]

main :: IO ()
main = do
  print (fib 20)
  print (primes !! 300)
  box <- newEmptyMVar
  forM_ [1 .. 50 :: Int] $ \n -> forkIO (putMVar box $! foldl' (+) 0 [1 .. n * 100])
  sums <- replicateM 50 (takeMVar box)
  print (sum sums)
  caught <- forM [1 .. 100 :: Int] $ \n -> handle (\e -> return (length (show (e :: ArithException)))) (evaluate (n `div` (n - n)))
  print (sum caught)
  performGC
  writeFile "x" (unlines (map show [1 .. 3000 :: Int]))
  text <- readFile "x"
  print (sum (map read (lines text) :: [Int]))
  print (sum (take 100 (sort [i * 7919 `mod` 5003 | i <- [1 .. 5000 :: Int]])))
  hPutStrLn stderr "to stderr"
  exitWith (ExitFailure 5)
