"""The compiled part of the pool: workers that wait, and the kernel that shares another kernel's work out."""

from __future__ import annotations

import platform
import signal

from ptml.threads import MAX_THREADS

__all__ = ["AT", "HEAD_WORDS", "POOL_BYTES", "workers_source"]

# Where things are in the pool, in bytes: what many threads write lies in cache lines of its own. Locks have
# more room than any C library takes for them.
AT = {
    "threads": 0,
    "spins": 8,
    "started": 16,
    "stop": 24,
    "ticket": 128,
    "left": 256,
    "failed": 320,
    "sleeping": 384,
    "job": 448,
    "per": 456,
    "owner": 512,
    "lock": 640,
    "condition": 768,
    "handles": 1024,
}
POOL_BYTES = AT["handles"] + 8 * MAX_THREADS

# The words at the beginning: the pool, the kernel whose work is shared and how many words it has, which of
# them is the size and the size, the grain, the parts for each thread (0 where every part is one grain), and
# the number of steps. Then come those, each a word, what it grows by with a unit, and with a part; then the
# kernel's own words.
HEAD_WORDS = 8

# The ticket says at once which work is at hand (upper half) and how many of its parts nobody has taken yet
# (lower half). Whoever takes one keeps the work from ending until it is done; so what describes the work
# holds still as long as anybody reads it.
_SOURCE = """
declare i32 @pthread_create(ptr, ptr, ptr, ptr)
declare i32 @pthread_join(i64, ptr)
declare i32 @pthread_mutex_init(ptr, ptr)
declare i32 @pthread_mutex_lock(ptr)
declare i32 @pthread_mutex_trylock(ptr)
declare i32 @pthread_mutex_unlock(ptr)
declare i32 @pthread_cond_init(ptr, ptr)
declare i32 @pthread_cond_wait(ptr, ptr)
declare i32 @pthread_cond_broadcast(ptr)
declare i32 @pthread_sigmask(i32, ptr, ptr)
declare i32 @sigfillset(ptr)
declare i32 @sched_yield()
declare void @llvm.memcpy.p0.p0.i64(ptr, ptr, i64, i1)
{pause_declaration}

define internal i32 @part(ptr %table, i64 %index, i64 %per) {{
entry:
  %kernel_at = getelementptr i64, ptr %table, i64 1
  %kernel = load ptr, ptr %kernel_at
  %n_words_at = getelementptr i64, ptr %table, i64 2
  %n_words = load i64, ptr %n_words_at
  %place_at = getelementptr i64, ptr %table, i64 3
  %place = load i64, ptr %place_at
  %size_at = getelementptr i64, ptr %table, i64 4
  %size = load i64, ptr %size_at
  %n_steps_at = getelementptr i64, ptr %table, i64 7
  %n_steps = load i64, ptr %n_steps_at
  %steps = getelementptr i64, ptr %table, i64 {head}
  %thrice = mul i64 %n_steps, 3
  %words = getelementptr i64, ptr %steps, i64 %thrice
  %own = alloca i64, i64 %n_words, align 16
  %bytes = mul i64 %n_words, 8
  call void @llvm.memcpy.p0.p0.i64(ptr %own, ptr %words, i64 %bytes, i1 false)
  %start = mul i64 %index, %per
  %rest = sub i64 %size, %start
  %short = icmp slt i64 %rest, %per
  %count = select i1 %short, i64 %rest, i64 %per
  %count_at = getelementptr i64, ptr %own, i64 %place
  store i64 %count, ptr %count_at
  %any = icmp sgt i64 %n_steps, 0
  br i1 %any, label %move, label %run
move:
  %k = phi i64 [ 0, %entry ], [ %k_next, %move ]
  %three = mul i64 %k, 3
  %word_at = getelementptr i64, ptr %steps, i64 %three
  %word = load i64, ptr %word_at
  %unit_at = getelementptr i64, ptr %word_at, i64 1
  %unit = load i64, ptr %unit_at
  %each_at = getelementptr i64, ptr %word_at, i64 2
  %each = load i64, ptr %each_at
  %moved_at = getelementptr i64, ptr %own, i64 %word
  %before = load i64, ptr %moved_at
  %way = mul i64 %start, %unit
  %off = mul i64 %index, %each
  %there = add i64 %before, %way
  %after = add i64 %there, %off
  store i64 %after, ptr %moved_at
  %k_next = add i64 %k, 1
  %more = icmp slt i64 %k_next, %n_steps
  br i1 %more, label %move, label %run
run:
  %code = call i32 %kernel(ptr %own)
  ret i32 %code
}}

define internal void @work(ptr %pool) {{
entry:
  %ticket = getelementptr i8, ptr %pool, i64 {ticket}
  %left = getelementptr i8, ptr %pool, i64 {left}
  %failed = getelementptr i8, ptr %pool, i64 {failed}
  %job_at = getelementptr i8, ptr %pool, i64 {job}
  %per_at = getelementptr i8, ptr %pool, i64 {per}
  br label %look
look:
  %seen = load atomic i64, ptr %ticket seq_cst, align 8
  br label %claim
claim:
  %held = phi i64 [ %seen, %look ], [ %now, %try ]
  %open = and i64 %held, 4294967295
  %none = icmp eq i64 %open, 0
  br i1 %none, label %end, label %try
try:
  %index = sub i64 %open, 1
  %less = sub i64 %held, 1
  %swap = cmpxchg ptr %ticket, i64 %held, i64 %less seq_cst seq_cst
  %now = extractvalue {{ i64, i1 }} %swap, 0
  %won = extractvalue {{ i64, i1 }} %swap, 1
  br i1 %won, label %run, label %claim
run:
  %job = load ptr, ptr %job_at
  %per = load i64, ptr %per_at
  %code = call i32 @part(ptr %job, i64 %index, i64 %per)
  %fine = icmp eq i32 %code, 0
  br i1 %fine, label %done, label %wrong
wrong:
  store atomic i32 %code, ptr %failed seq_cst, align 4
  br label %done
done:
  %_ = atomicrmw sub ptr %left, i64 1 seq_cst
  br label %look
end:
  ret void
}}

define internal ptr @worker(ptr %pool) {{
entry:
  ; Signals are for the threads of Python.
  %signals = alloca [128 x i8], align 16
  %s0 = call i32 @sigfillset(ptr %signals)
  %s1 = call i32 @pthread_sigmask(i32 {set_mask}, ptr %signals, ptr null)
  %ticket = getelementptr i8, ptr %pool, i64 {ticket}
  %sleeping = getelementptr i8, ptr %pool, i64 {sleeping}
  %stop_at = getelementptr i8, ptr %pool, i64 {stop}
  %lock = getelementptr i8, ptr %pool, i64 {lock}
  %condition = getelementptr i8, ptr %pool, i64 {condition}
  %spins_at = getelementptr i8, ptr %pool, i64 {spins}
  %spins = load i64, ptr %spins_at
  br label %idle
idle:
  %k = phi i64 [ 0, %entry ], [ 0, %busy ], [ %k_next, %spin ]
  %seen = load atomic i64, ptr %ticket seq_cst, align 8
  %open = and i64 %seen, 4294967295
  %none = icmp eq i64 %open, 0
  br i1 %none, label %spin, label %busy
spin:
  {pause}
  %k_next = add i64 %k, 1
  %patient = icmp slt i64 %k_next, %spins
  br i1 %patient, label %idle, label %tired
tired:
  %l0 = call i32 @pthread_mutex_lock(ptr %lock)
  %a0 = atomicrmw add ptr %sleeping, i64 1 seq_cst
  br label %check
check:
  %stop = load atomic i64, ptr %stop_at seq_cst, align 8
  %again = load atomic i64, ptr %ticket seq_cst, align 8
  %open_again = and i64 %again, 4294967295
  %reasons = or i64 %stop, %open_again
  %nothing = icmp eq i64 %reasons, 0
  br i1 %nothing, label %sleep, label %awake
sleep:
  %w0 = call i32 @pthread_cond_wait(ptr %condition, ptr %lock)
  br label %check
awake:
  %a1 = atomicrmw sub ptr %sleeping, i64 1 seq_cst
  %l1 = call i32 @pthread_mutex_unlock(ptr %lock)
  %over = icmp ne i64 %stop, 0
  br i1 %over, label %out, label %busy
busy:
  call void @work(ptr %pool)
  br label %idle
out:
  ret ptr null
}}

define internal void @start_workers(ptr %pool, i64 %wanted) {{
entry:
  %started_at = getelementptr i8, ptr %pool, i64 {started}
  %handles = getelementptr i8, ptr %pool, i64 {handles}
  br label %check
check:
  %started = load i64, ptr %started_at
  %few = icmp slt i64 %started, %wanted
  br i1 %few, label %begin, label %end
begin:
  %handle = getelementptr i64, ptr %handles, i64 %started
  %code = call i32 @pthread_create(ptr %handle, ptr null, ptr @worker, ptr %pool)
  %fine = icmp eq i32 %code, 0
  br i1 %fine, label %another, label %end
another:
  %one_more = add i64 %started, 1
  store i64 %one_more, ptr %started_at
  br label %check
end:
  ret void
}}

define internal void @wake(ptr %pool) {{
  %lock = getelementptr i8, ptr %pool, i64 {lock}
  %condition = getelementptr i8, ptr %pool, i64 {condition}
  %l0 = call i32 @pthread_mutex_lock(ptr %lock)
  %w0 = call i32 @pthread_cond_broadcast(ptr %condition)
  %l1 = call i32 @pthread_mutex_unlock(ptr %lock)
  ret void
}}

define i32 @share(ptr %table) {{
entry:
  %pool = load ptr, ptr %table
  %kernel_at = getelementptr i64, ptr %table, i64 1
  %kernel = load ptr, ptr %kernel_at
  %size_at = getelementptr i64, ptr %table, i64 4
  %size = load i64, ptr %size_at
  %grain_at = getelementptr i64, ptr %table, i64 5
  %grain = load i64, ptr %grain_at
  %each_at = getelementptr i64, ptr %table, i64 6
  %each = load i64, ptr %each_at
  %n_steps_at = getelementptr i64, ptr %table, i64 7
  %n_steps = load i64, ptr %n_steps_at
  %threads = load atomic i64, ptr %pool seq_cst, align 8
  %several = icmp sgt i64 %threads, 1
  %fixed = icmp eq i64 %each, 0
  %parted = or i1 %several, %fixed
  br i1 %parted, label %measure, label %alone
measure:
  %most = mul i64 %threads, %each
  %wanted = select i1 %fixed, i64 1, i64 %most
  %above = add i64 %size, %wanted
  %above1 = sub i64 %above, 1
  %even = sdiv i64 %above1, %wanted
  %up = add i64 %even, %grain
  %up1 = sub i64 %up, 1
  %grains = sdiv i64 %up1, %grain
  %even_per = mul i64 %grains, %grain
  %per = select i1 %fixed, i64 %grain, i64 %even_per
  %fill = add i64 %size, %per
  %fill1 = sub i64 %fill, 1
  %parts = sdiv i64 %fill1, %per
  %divided = icmp sgt i64 %parts, 1
  br i1 %divided, label %together, label %alone
alone:
  %thrice = mul i64 %n_steps, 3
  %behind = add i64 %thrice, {head}
  %words = getelementptr i64, ptr %table, i64 %behind
  %only = call i32 %kernel(ptr %words)
  ret i32 %only
together:
  %owner = getelementptr i8, ptr %pool, i64 {owner}
  br i1 %several, label %ask, label %each_part
ask:
  %taken = call i32 @pthread_mutex_trylock(ptr %owner)
  %free = icmp eq i32 %taken, 0
  br i1 %free, label %post, label %each_part
each_part:
  %k = phi i64 [ 0, %together ], [ 0, %ask ], [ %k_next, %each_part ]
  %worst = phi i32 [ 0, %together ], [ 0, %ask ], [ %worse, %each_part ]
  %code = call i32 @part(ptr %table, i64 %k, i64 %per)
  %worse = or i32 %worst, %code
  %k_next = add i64 %k, 1
  %more = icmp slt i64 %k_next, %parts
  br i1 %more, label %each_part, label %through
through:
  ret i32 %worse
post:
  %others = sub i64 %threads, 1
  call void @start_workers(ptr %pool, i64 %others)
  %job_at = getelementptr i8, ptr %pool, i64 {job}
  store ptr %table, ptr %job_at
  %per_at = getelementptr i8, ptr %pool, i64 {per}
  store i64 %per, ptr %per_at
  %failed = getelementptr i8, ptr %pool, i64 {failed}
  store atomic i32 0, ptr %failed seq_cst, align 4
  %left = getelementptr i8, ptr %pool, i64 {left}
  store atomic i64 %parts, ptr %left seq_cst, align 8
  %ticket = getelementptr i8, ptr %pool, i64 {ticket}
  %old = load atomic i64, ptr %ticket seq_cst, align 8
  %turn = lshr i64 %old, 32
  %next_turn = add i64 %turn, 1
  %upper = shl i64 %next_turn, 32
  %new = or i64 %upper, %parts
  store atomic i64 %new, ptr %ticket seq_cst, align 8
  %sleeping_at = getelementptr i8, ptr %pool, i64 {sleeping}
  %sleeping = load atomic i64, ptr %sleeping_at seq_cst, align 8
  %asleep = icmp sgt i64 %sleeping, 0
  br i1 %asleep, label %call, label %join
call:
  call void @wake(ptr %pool)
  br label %join
join:
  call void @work(ptr %pool)
  %spins_at = getelementptr i8, ptr %pool, i64 {spins}
  %spins = load i64, ptr %spins_at
  br label %wait
wait:
  %waited = phi i64 [ 0, %join ], [ %waited_next, %linger ], [ %waited_next, %yield ]
  %unfinished = load atomic i64, ptr %left seq_cst, align 8
  %finished = icmp eq i64 %unfinished, 0
  br i1 %finished, label %end, label %linger_or_yield
linger_or_yield:
  %waited_next = add i64 %waited, 1
  %long = icmp sgt i64 %waited_next, %spins
  br i1 %long, label %yield, label %linger
linger:
  {pause}
  br label %wait
yield:
  %y0 = call i32 @sched_yield()
  br label %wait
end:
  %result = load atomic i32, ptr %failed seq_cst, align 4
  %l1 = call i32 @pthread_mutex_unlock(ptr %owner)
  ret i32 %result
}}

define void @prepare(ptr %pool) {{
  %owner = getelementptr i8, ptr %pool, i64 {owner}
  %lock = getelementptr i8, ptr %pool, i64 {lock}
  %condition = getelementptr i8, ptr %pool, i64 {condition}
  %c0 = call i32 @pthread_mutex_init(ptr %owner, ptr null)
  %c1 = call i32 @pthread_mutex_init(ptr %lock, ptr null)
  %c2 = call i32 @pthread_cond_init(ptr %condition, ptr null)
  ret void
}}

define void @stop(ptr %pool) {{
entry:
  %owner = getelementptr i8, ptr %pool, i64 {owner}
  %l0 = call i32 @pthread_mutex_lock(ptr %owner)
  %stop_at = getelementptr i8, ptr %pool, i64 {stop}
  store atomic i64 1, ptr %stop_at seq_cst, align 8
  call void @wake(ptr %pool)
  %started_at = getelementptr i8, ptr %pool, i64 {started}
  %handles = getelementptr i8, ptr %pool, i64 {handles}
  %started = load i64, ptr %started_at
  %any = icmp sgt i64 %started, 0
  br i1 %any, label %join, label %end
join:
  %k = phi i64 [ 0, %entry ], [ %k_next, %join ]
  %handle_at = getelementptr i64, ptr %handles, i64 %k
  %handle = load i64, ptr %handle_at
  %j0 = call i32 @pthread_join(i64 %handle, ptr null)
  %k_next = add i64 %k, 1
  %more = icmp slt i64 %k_next, %started
  br i1 %more, label %join, label %end
end:
  store i64 0, ptr %started_at
  store atomic i64 0, ptr %stop_at seq_cst, align 8
  ret void
}}

define void @go_on(ptr %pool) {{
  %owner = getelementptr i8, ptr %pool, i64 {owner}
  %l0 = call i32 @pthread_mutex_unlock(ptr %owner)
  ret void
}}

define i64 @spin(i64 %n) {{
entry:
  br label %again
again:
  %k = phi i64 [ 0, %entry ], [ %k_next, %again ]
  {pause}
  %k_next = add i64 %k, 1
  %more = icmp slt i64 %k_next, %n
  br i1 %more, label %again, label %end
end:
  ret i64 %k_next
}}
"""

# What a waiting thread tells its processor, so that the other one on the core gets on.
_PAUSES = {
    "x86_64": ("declare void @llvm.x86.sse2.pause()", "call void @llvm.x86.sse2.pause()"),
    "aarch64": ("declare void @llvm.aarch64.hint(i32)", "call void @llvm.aarch64.hint(i32 1)"),
}
_PAUSES["amd64"], _PAUSES["arm64"] = _PAUSES["x86_64"], _PAUSES["aarch64"]


def workers_source() -> str:
    """Write the module for this machine."""
    declaration, pause = _PAUSES.get(platform.machine().lower(), ("", 'call void asm sideeffect "", ""()'))
    numbers = {**AT, "head": HEAD_WORDS, "set_mask": int(signal.SIG_SETMASK)}
    return _SOURCE.format(pause_declaration=declaration, pause=pause, **numbers)
