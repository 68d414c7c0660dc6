(* Exceptions through frames, closures, the collectors, maps, strings, children, signals, files. *)
module M = Map.Make (String)
exception Bottom of int
let rec deep n = if n = 0 then raise (Bottom 7) else 1 + deep (n - 1)
let rec fib n = if n < 2 then n else fib (n - 1) + fib (n - 2)
type tree = Leaf | Node of tree * tree
let rec make n = if n = 0 then Leaf else Node (make (n - 1), make (n - 1))
let rec size = function Leaf -> 1 | Node (l, r) -> 1 + size l + size r
let () =
  let caught = ref 0 in
  for _ = 1 to 500 do (try ignore (deep 200) with Bottom n -> caught := !caught + n) done;
  Printf.printf "%d %d\n" !caught (fib 24);
  let total = ref 0 in
  for _ = 1 to 20 do total := !total + size (make 12); Gc.minor () done;
  Gc.compact ();
  Printf.printf "%d\n" !total;
  let words = String.split_on_char ' ' "the quick brown fox jumps over the lazy dog the end" in
  let count = List.fold_left (fun m w -> M.update w (function None -> Some 1 | Some n -> Some (n + 1)) m) M.empty words in
  M.iter (fun w n -> Printf.printf "%s=%d " w n) count;
  print_newline ();
  let hits = ref 0 in
  Sys.set_signal Sys.sigusr1 (Sys.Signal_handle (fun _ -> incr hits));
  Printf.printf "%d\n%!" (Sys.command "echo from a child; exit 7");
  let out = open_out "x" in
  for i = 1 to 3000 do Printf.fprintf out "%d %f\n" i (sqrt (float_of_int i)) done;
  close_out out;
  Printf.printf "%s\n" (Digest.to_hex (Digest.file "x"));
  let h = Hashtbl.create 16 in
  for i = 1 to 20000 do Hashtbl.replace h (i * 7919 mod 10007) (string_of_int i) done;
  Printf.printf "%d %s\n" (Hashtbl.length h) (Hashtbl.find h 5);
  let sorted = List.sort compare (List.init 5000 (fun i -> i * 7919 mod 5003)) in
  Printf.printf "%d\n" (List.nth sorted 1234);
  prerr_endline "to stderr";
  exit 6
