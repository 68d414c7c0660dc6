(* Exceptions through frames, both collectors, threads, a timer's signals, children; the argument says how much. *)
exception Bottom of int
let rec deep n = if n = 0 then raise (Bottom 7) else 1 + deep (n - 1)
type tree = Leaf | Node of tree * tree
let rec make n = if n = 0 then Leaf else Node (make (n - 1), make (n - 1))
let rec size = function Leaf -> 1 | Node (l, r) -> 1 + size l + size r
let sums = Array.make 3 0
let work seed =
  for n = 1 to int_of_string Sys.argv.(1) do
    let more = try deep (n mod 200) with Bottom k -> k in
    let trees = if n mod 50 = 0 then size (make 12) else 0 in
    sums.(seed) <- sums.(seed) + more + trees + String.length (string_of_float (sqrt (float_of_int n)))
  done
let () =
  let rings = ref 0 in
  Sys.set_signal Sys.sigalrm (Sys.Signal_handle (fun _ -> incr rings));
  ignore (Unix.setitimer Unix.ITIMER_REAL { Unix.it_interval = 0.01; it_value = 0.01 });
  let threads = List.map (Thread.create work) [ 0; 1; 2 ] in
  let statuses = ref 0 in
  for _ = 1 to 20 do statuses := !statuses + Sys.command "exit 7"; Gc.compact () done;
  List.iter Thread.join threads;
  Array.iter (Printf.printf "%d ") sums;
  Printf.printf "%d %b\n" !statuses (!rings > 0);
  exit 6
