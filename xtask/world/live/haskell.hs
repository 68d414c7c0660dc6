-- Laziness, exceptions, threads with MVars, maps, the collector, children.
import Control.Concurrent
import Control.Exception
import Control.Monad
import Data.List (foldl', sort)
import System.Exit
import System.Mem
import System.Process

primes :: [Int]
primes = sieve [2 ..] where sieve (p : xs) = p : sieve [x | x <- xs, x `mod` p /= 0]

caught :: Int -> IO Int
caught n = handle (\e -> return (length (show (e :: ArithException)))) (evaluate (n `div` (n - n)))

work :: Int -> IO Int
work seed = do
  errors <- forM [1 .. 30000] caught
  let numbers = [i * 7919 `mod` (5003 + seed) | i <- [1 .. 150000]]
  return $! foldl' (+) (sum errors) (zipWith (*) (sort numbers) (cycle [1, -1, 2]))

main :: IO ()
main = do
  boxes <- forM [1 .. 8] $ \seed -> do
    box <- newEmptyMVar
    _ <- forkIO (work seed >>= putMVar box)
    return box
  statuses <- replicateM 30 (performGC >> system "exit 7")
  print (length (filter (== ExitFailure 7) statuses))
  print (primes !! 2000)
  mapM takeMVar boxes >>= print
  exitWith (ExitFailure 5)
