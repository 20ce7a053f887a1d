;; Functions whose bodies `booting.guard` puts into the guest's module. It fills in the numbers in braces: the
;; globals that the guards add, and the functions whose places the first two take. The functions use the guest's
;; memory, and a second one that holds a copy of the boot image. Global 0 is the guest's stack pointer.
(module
  (memory $guest 1)
  (memory $copy 1)

  ;; Call a JavaScript function and count the depth of calls. Past the limit, call `overflow_function` instead,
  ;; with a little room below the limit. Generators (flag 4) are resumed at any depth. 3 << 32 is `undefined`.
  (func (param $ctx i32) (param $function i64) (param $this i64) (param $target i64)
        (param $argc i32) (param $argv i32) (param $flags i32) (result i64)
    (local $result i64) (local $saved i32)
    (global.set {depth} (i32.add (global.get {depth}) (i32.const 1)))
    (if (i32.and (i32.gt_s (global.get {depth}) (global.get {limit}))
                 (i32.eqz (i32.and (local.get $flags) (i32.const 4))))
      (then
        (local.set $saved (global.get {depth}))
        (global.set {depth} (i32.sub (global.get {limit}) (i32.const 64)))
        (local.set $result
          (call {call} (local.get $ctx) (global.get {overflow}) (i64.const 0x300000000) (i64.const 0x300000000)
                       (i32.const 0) (i32.const 0) (i32.const 0)))
        (global.set {depth} (local.get $saved)))
      (else
        (local.set $result
          (call {call} (local.get $ctx) (local.get $function) (local.get $this) (local.get $target)
                       (local.get $argc) (local.get $argv) (local.get $flags)))))
    (global.set {depth} (i32.sub (global.get {depth}) (i32.const 1)))
    (local.get $result))

  ;; Grow the heap; trap where memory cannot grow, so that nothing of the guest runs on.
  (func (param $address i32) (result i32)
    (local.tee $address (call {sbrk} (local.get $address)))
    (if (i32.eq (i32.const -1)) (then unreachable))
    (local.get $address))

  ;; Give a promise that was rejected, its reason and whether it is handled to `rejection_function`, which may
  ;; go a little past the limit of the depth. Flag 2 makes the engine copy the arguments; 1 << 32 is `false`.
  (func (param $ctx i32) (param $promise i64) (param $reason i64) (param $handled i32) (param $opaque i32)
    (local $values i32) (local $saved i32)
    (global.set 0 (local.tee $values (i32.sub (global.get 0) (i32.const 32))))
    (i64.store $guest (local.get $values) (local.get $promise))
    (i64.store $guest offset=8 (local.get $values) (local.get $reason))
    (i64.store $guest offset=16 (local.get $values)
      (i64.or (i64.extend_i32_u (local.get $handled)) (i64.const 0x100000000)))
    (local.set $saved (global.get {depth}))
    (global.set {depth} (i32.sub (global.get {limit}) (i32.const 64)))
    (drop
      (call {call} (local.get $ctx) (global.get {rejection}) (i64.const 0x300000000) (i64.const 0x300000000)
                   (i32.const 3) (local.get $values) (i32.const 2)))
    (global.set {depth} (local.get $saved))
    (global.set 0 (i32.add (local.get $values) (i32.const 32))))

  ;; Fill what the allocator (dlmalloc) has free with zeros, from its first chunk on. Return the end's address.
  (func (param $chunk i32) (result i32)
    (local $head i32) (local $size i32) (local $needed i32)
    (block $end
      (loop $next
        (br_if $end (i32.gt_u (i32.add (local.get $chunk) (i32.const 8))
                              (i32.shl (memory.size $guest) (i32.const 16))))
        (local.set $head (i32.load $guest offset=4 (local.get $chunk)))
        (local.set $size (i32.and (local.get $head) (i32.const -8)))
        (br_if $end (i32.lt_u (local.get $size) (i32.const 16)))
        (if (i32.eqz (i32.and (local.get $head) (i32.const 2)))
          (then
            ;; The links of a free chunk stay.
            (local.set $needed
              (select (i32.const 16) (i32.const 32) (i32.lt_u (local.get $size) (i32.const 256))))
            (if (i32.gt_u (local.get $size) (local.get $needed))
              (then
                (memory.fill $guest
                  (i32.add (local.get $chunk) (local.get $needed))
                  (i32.const 0)
                  (i32.sub (local.get $size) (local.get $needed)))))))
        (local.set $needed (i32.add (local.get $chunk) (local.get $size)))
        (br_if $end (i32.le_u (local.get $needed) (local.get $chunk)))
        (local.set $chunk (local.get $needed))
        (br $next)))
    (local.get $chunk))

  ;; List the runs of 64-byte blocks that differ from the boot image, or from zeros behind it, as pairs of
  ;; addresses. Runs that are at most $gap bytes apart are one. Return how many; -1 if the list has no room.
  (func (param $from i32) (param $image i32) (param $gap i32) (param $list i32) (param $room i32) (result i32)
    (local $at i32) (local $end i32) (local $count i32) (local $last i32) (local $bits v128)
    (local.set $at (local.get $from))
    (local.set $end (i32.shl (memory.size $guest) (i32.const 16)))
    (block $done
      (loop $next
        (br_if $done (i32.ge_u (local.get $at) (local.get $end)))
        (local.set $bits
          (v128.or
            (v128.or (v128.load $guest (local.get $at)) (v128.load $guest offset=16 (local.get $at)))
            (v128.or (v128.load $guest offset=32 (local.get $at)) (v128.load $guest offset=48 (local.get $at)))))
        (if (i32.lt_u (i32.sub (local.get $at) (local.get $from)) (local.get $image))
          (then
            (local.set $last (i32.sub (local.get $at) (local.get $from)))
            (local.set $bits
              (v128.or
                (v128.or
                  (v128.xor (v128.load $guest (local.get $at)) (v128.load $copy (local.get $last)))
                  (v128.xor (v128.load $guest offset=16 (local.get $at))
                            (v128.load $copy offset=16 (local.get $last))))
                (v128.or
                  (v128.xor (v128.load $guest offset=32 (local.get $at))
                            (v128.load $copy offset=32 (local.get $last)))
                  (v128.xor (v128.load $guest offset=48 (local.get $at))
                            (v128.load $copy offset=48 (local.get $last))))))))
        (if (v128.any_true (local.get $bits))
          (then
            (local.set $last (i32.add (local.get $list) (i32.shl (local.get $count) (i32.const 3))))
            (if (i32.and
                  (i32.ne (local.get $count) (i32.const 0))
                  (i32.le_u (i32.sub (local.get $at) (i32.load $copy (i32.sub (local.get $last) (i32.const 4))))
                            (local.get $gap)))
              (then
                (i32.store $copy (i32.sub (local.get $last) (i32.const 4))
                  (i32.add (local.get $at) (i32.const 64))))
              (else
                (if (i32.eq (local.get $count) (local.get $room)) (then (return (i32.const -1))))
                (i32.store $copy (local.get $last) (local.get $at))
                (i32.store $copy offset=4 (local.get $last) (i32.add (local.get $at) (i32.const 64)))
                (local.set $count (i32.add (local.get $count) (i32.const 1)))))))
        (local.set $at (i32.add (local.get $at) (i32.const 64)))
        (br $next)))
    (local.get $count)))
