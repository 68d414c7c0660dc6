//! The protocols between readers without locks and writers, as small models that loom runs in every
//! order the memory model allows.
//!
//! The maps themselves live in memory that other processes map, so their atomics cannot be loom's.
//! Each model here has the same words, the same accesses in the same order and with the same
//! orderings as the code it is named after; who changes one changes the other.

use loom::sync::Arc;
use loom::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release, SeqCst};
use loom::sync::atomic::{AtomicU64, fence};
use loom::thread;

/// `hash/table.rs`, `find`: an element leaves its chain and is used again for another key while a
/// reader stands on it.
///
/// One bucket with one element, key 1 with value 1. The writer deletes it, and puts key 2 with
/// value 2 into the same element. The reader looks for key 1: he finds value 1 or nothing, never
/// value 2.
#[test]
fn a_reader_of_a_bucket_never_takes_another_keys_value() {
    loom::model(|| {
        // Version in the high half, 1 for the element in the low half.
        let bucket = Arc::new(AtomicU64::new(1));
        let key = Arc::new(AtomicU64::new(1));
        let value = Arc::new(AtomicU64::new(1));
        let writer = {
            let (bucket, key, value) = (bucket.clone(), key.clone(), value.clone());
            thread::spawn(move || {
                // relink: out of the chain, and the bucket changes.
                bucket.store(1 << 32, Release);
                // put, take and fill.
                fence(Release);
                key.store(2, Relaxed);
                value.store(2, Relaxed);
                bucket.store(2 << 32 | 1, Release);
            })
        };
        let head = bucket.load(Acquire);
        if head as u32 == 1 {
            let hit = key.load(Relaxed) == 1;
            // A user copies the value before the check, as `read` does.
            let copied = value.load(Relaxed);
            fence(Acquire);
            if bucket.load(Relaxed) == head && hit {
                assert_eq!(copied, 1);
            }
        }
        writer.join().expect("no panic");
    });
}

/// `stack_trace.rs`: a stack is replaced under a reader, who sees the old one, the new one or none.
#[test]
fn a_reader_of_a_stack_sees_a_whole_one() {
    loom::model(|| {
        // Version above, number of words below.
        let state = Arc::new(AtomicU64::new(2 << 32 | 2));
        let words = Arc::new([AtomicU64::new(1), AtomicU64::new(1)]);
        let writer = {
            let (state, words) = (state.clone(), words.clone());
            thread::spawn(move || {
                state.store(3 << 32, Relaxed);
                fence(Release);
                words[0].store(2, Relaxed);
                words[1].store(2, Relaxed);
                state.store(4 << 32 | 2, Release);
            })
        };
        let before = state.load(Acquire);
        if before as u32 != 0 {
            let seen = [words[0].load(Relaxed), words[1].load(Relaxed)];
            fence(Acquire);
            if state.load(Relaxed) == before {
                assert_eq!(seen[0], seen[1], "half of each");
            }
        }
        writer.join().expect("no panic");
    });
}

/// `lpm_trie/`: a node leaves the tree and comes back with another prefix while a reader walks.
#[test]
fn a_reader_of_a_trie_never_takes_a_node_used_anew() {
    loom::model(|| {
        let version = Arc::new(AtomicU64::new(0));
        let root = Arc::new(AtomicU64::new(1));
        let prefix = Arc::new(AtomicU64::new(10));
        let value = Arc::new(AtomicU64::new(10));
        let writer = {
            let (version, root, prefix, value) =
                (version.clone(), root.clone(), prefix.clone(), value.clone());
            thread::spawn(move || {
                root.store(0, Release);
                // renew
                version.store(version.load(Relaxed) + 1, Release);
                fence(Release);
                prefix.store(20, Relaxed);
                value.store(20, Relaxed);
                root.store(1, Release);
            })
        };
        let before = version.load(Acquire);
        let found =
            (root.load(Acquire) == 1 && prefix.load(Relaxed) == 10).then(|| value.load(Relaxed));
        fence(Acquire);
        if version.load(Relaxed) == before {
            assert!(found.is_none_or(|v| v == 10));
        }
        writer.join().expect("no panic");
    });
}

/// `queue_stack.rs`: a value is written over while a walk copies it.
#[test]
fn a_walk_through_a_queue_copies_whole_values() {
    loom::model(|| {
        let changes = Arc::new(AtomicU64::new(0));
        let tail = Arc::new(AtomicU64::new(0));
        let words = Arc::new([AtomicU64::new(1), AtomicU64::new(1)]);
        let writer = {
            let (changes, tail, words) = (changes.clone(), tail.clone(), words.clone());
            thread::spawn(move || {
                // A push into a full queue of one, with BPF_EXIST.
                changes.store(1, Relaxed);
                fence(Release);
                tail.store(1, Release);
                fence(Release);
                words[0].store(2, Relaxed);
                words[1].store(2, Relaxed);
                changes.store(2, Release);
            })
        };
        let before = changes.load(Acquire);
        if tail.load(Acquire) == 0 {
            let seen = [words[0].load(Relaxed), words[1].load(Relaxed)];
            fence(Acquire);
            if tail.load(Acquire) == 0 && changes.load(Relaxed) == before {
                assert_eq!(seen, [1, 1]);
            }
        }
        writer.join().expect("no panic");
    });
}

/// `queue_stack.rs`: the top of a stack is popped and another value pushed in its place while a
/// walk copies it.
#[test]
fn a_walk_through_a_stack_copies_whole_values() {
    loom::model(|| {
        let (changes, head) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(1)));
        let words = Arc::new([AtomicU64::new(1), AtomicU64::new(1)]);
        let writer = {
            let (changes, head, words) = (changes.clone(), head.clone(), words.clone());
            thread::spawn(move || {
                head.store(0, Release);
                changes.store(1, Relaxed);
                fence(Release);
                fence(Release);
                words[0].store(2, Relaxed);
                words[1].store(2, Relaxed);
                changes.store(2, Release);
                head.store(1, Release);
            })
        };
        let before = changes.load(Acquire);
        if head.load(Acquire) == 1 {
            let seen = [words[0].load(Relaxed), words[1].load(Relaxed)];
            fence(Acquire);
            if head.load(Acquire) == 1 && changes.load(Relaxed) == before {
                assert_eq!(seen[0], seen[1]);
            }
        }
        writer.join().expect("no panic");
    });
}

/// `shm/ring/`: who sees a record sees its sample.
#[test]
fn a_record_is_whole() {
    const BUSY: u64 = 1 << 31;
    loom::model(|| {
        let producer = Arc::new(AtomicU64::new(0));
        let header = Arc::new(AtomicU64::new(0));
        let sample = Arc::new(AtomicU64::new(0));
        let writer = {
            let (producer, header, sample) = (producer.clone(), header.clone(), sample.clone());
            thread::spawn(move || {
                // reserve
                header.store(BUSY | 8, Relaxed);
                producer.store(16, Release);
                sample.store(7, Relaxed);
                // finish
                header.store(8, Release);
            })
        };
        if producer.load(Acquire) != 0 {
            let word = header.load(Acquire);
            assert!(word == 8 || word == BUSY | 8, "who sees the position sees the header");
            assert!(
                word & BUSY != 0 || sample.load(Relaxed) == 7,
                "who sees the header sees the sample"
            );
        }
        writer.join().expect("no panic");
    });
}

/// `shm/ring/`: two producers copy samples in under the lock, one after the other, and none of
/// their records is seen unfinished.
#[test]
fn a_record_made_under_the_lock_is_never_seen_unfinished() {
    loom::model(|| {
        let words = Arc::new([const { 0 }; 6].map(AtomicU64::new));
        let make = |words: &[AtomicU64; 6], owner: u64| {
            let [lock, position, headers @ ..] = words;
            let word = lock.load(Relaxed);
            if word & 0xff != 0
                || lock.compare_exchange(word, word | owner, Acquire, Relaxed).is_err()
            {
                return;
            }
            let begin = position.load(Relaxed) as usize;
            headers[begin + 1].store(7, Relaxed);
            headers[begin].store(8, Relaxed);
            position.store(begin as u64 + 2, Release);
            lock.store((word & !0xff) + 0x100, Release);
        };
        let producers = [1, 2].map(|owner| {
            let words = words.clone();
            thread::spawn(move || make(&words, owner))
        });
        let [_, position, data @ ..] = &*words;
        let known = position.load(Acquire) as usize;
        for record in data[..known].chunks(2) {
            assert_eq!([record[0].load(Acquire), record[1].load(Relaxed)], [8, 7]);
        }
        for p in producers {
            p.join().expect("no panic");
        }
    });
}

/// `shm/ring/`: a consumer that goes to sleep sees the record, or its producer sees that it
/// sleeps, though the producer has no barrier between its store and its load: the kernel makes it
/// pass one somewhere, and the consumer waits for that.
#[test]
fn a_sleeper_sees_the_record_or_is_woken() {
    loom::model(|| {
        let words = Arc::new([const { 0 }; 4].map(AtomicU64::new));
        let producer = {
            let words = words.clone();
            thread::spawn(move || {
                let [header, sleeping, asked, passed] = &*words;
                // What membarrier(2) makes a running thread do, if it comes now.
                let interrupted = || {
                    if asked.load(Acquire) != 0 {
                        fence(SeqCst);
                        passed.store(1, Release);
                    }
                };
                interrupted();
                header.store(8, Release);
                interrupted();
                let wakes = sleeping.load(Relaxed) != 0;
                // After this the thread does other things, which a barrier comes between sooner or
                // later.
                while passed.load(Relaxed) == 0 {
                    interrupted();
                    thread::yield_now();
                }
                wakes
            })
        };
        let [header, sleeping, asked, passed] = &*words;
        sleeping.store(1, SeqCst);
        asked.store(1, Release);
        while passed.load(Acquire) == 0 {
            thread::yield_now();
        }
        let seen = header.load(Acquire) != 0;
        assert!(producer.join().expect("no panic") || seen, "asleep for ever");
    });
}

/// `shm/lock.rs`: a lock that passes on from one to the next keeps what it protects in order.
#[test]
fn a_lock_is_held_by_one_at_a_time() {
    loom::model(|| {
        let lock = Arc::new(AtomicU64::new(0));
        let count = Arc::new(AtomicU64::new(0));
        let add = |owner: u64, lock: &AtomicU64, count: &AtomicU64| {
            let word = lock.load(Relaxed);
            if word & 0xff == 0
                && lock.compare_exchange(word, word | owner, Acquire, Relaxed).is_ok()
            {
                let n = count.load(Relaxed);
                count.store(n + 1, Relaxed);
                lock.store(((word | owner) & !0xff) + 0x100, Release);
                1
            } else {
                0
            }
        };
        let other = {
            let (lock, count) = (lock.clone(), count.clone());
            thread::spawn(move || add(1, &lock, &count))
        };
        let mine = add(2, &lock, &count);
        let all = mine + other.join().expect("no panic");
        assert_eq!(count.load(Acquire), all);
    });
}

/// `percpu.rs`, `acquire`, and `hash/pool.rs`, `acquire_fresh`: a slot and an element get memory at
/// the same time. Whoever of them is later sees the other, so the element's value in the slot has
/// memory when both are said to have some. A third one begins to get memory for the same slot, and
/// fails.
#[test]
fn a_slot_and_an_element_that_get_memory_do_not_miss_each_other() {
    loom::model(|| {
        let (getting, have) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
        let (backed, memory) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
        let slot = {
            let (getting, have, backed, memory) =
                (getting.clone(), have.clone(), backed.clone(), memory.clone());
            thread::spawn(move || {
                getting.fetch_or(1, SeqCst);
                fence(SeqCst);
                // `each_in_use`
                if backed.load(SeqCst) != 0 {
                    memory.store(1, SeqCst);
                }
                have.fetch_or(1, SeqCst);
            })
        };
        let failing = {
            let getting = getting.clone();
            thread::spawn(move || {
                getting.fetch_or(1, SeqCst);
            })
        };
        let wants = || have.load(SeqCst) != 0 || getting.load(SeqCst) != 0;
        // Before the count is raised, and once more after.
        if wants() {
            memory.store(1, SeqCst);
        }
        backed.store(1, SeqCst);
        fence(SeqCst);
        if wants() {
            memory.store(1, SeqCst);
        }
        slot.join().expect("no panic");
        failing.join().expect("no panic");
        assert_eq!(memory.load(SeqCst), 1);
    });
}

/// `hash/in_place.rs`: the words of a value that is written over in place. The lock of the value is
/// not in the model, as the reader has taken it over from a writer that is dead or was stopped.
#[derive(Clone)]
struct InPlace {
    words: Arc<[AtomicU64; 2]>,
    spare: Arc<[AtomicU64; 2]>,
    bucket: Arc<AtomicU64>,
    redo: Arc<AtomicU64>,
}

impl InPlace {
    fn new(words: [u64; 2], redo: u64) -> Self {
        Self {
            words: Arc::new(words.map(AtomicU64::new)),
            spare: Arc::new([2, 2].map(AtomicU64::new)),
            bucket: Arc::new(AtomicU64::new(1 << 32 | 1)),
            redo: Arc::new(AtomicU64::new(redo)),
        }
    }

    /// `store_spare`: what a writer does, and who completes it after its death.
    fn store_spare(&self) {
        self.redo.store(1, Release);
        fence(Release);
        self.words[0].store(2, Relaxed);
        self.words[1].store(2, Relaxed);
        self.bucket.store(2 << 32 | 1, Release);
        self.redo.store(0, Release);
        self.bucket.store(3 << 32 | 1, Release);
    }

    /// `take_spare`, and `fill`: the next writer uses the spare for another value.
    fn reuse_spare(&self) {
        fence(Release);
        self.spare[0].store(3, Relaxed);
        self.spare[1].store(3, Relaxed);
    }

    /// `lookup_locked`: what a reader takes for whole.
    fn copied(&self) -> Option<[u64; 2]> {
        let head = self.bucket.load(Acquire);
        if self.redo.load(Acquire) != 0 {
            return None;
        }
        let seen = [self.words[0].load(Relaxed), self.words[1].load(Relaxed)];
        fence(Acquire);
        if self.redo.load(Acquire) != 0 {
            return None;
        }
        fence(Acquire);
        (self.bucket.load(Relaxed) == head).then_some(seen)
    }

    /// `spare_for`: what a reader without the value's lock takes for whole.
    fn copied_with_spare(&self) -> Option<[u64; 2]> {
        let head = self.bucket.load(Acquire);
        let mut seen = [self.words[0].load(Relaxed), self.words[1].load(Relaxed)];
        fence(Acquire);
        if self.redo.load(Acquire) == 1 {
            seen = [self.spare[0].load(Relaxed), self.spare[1].load(Relaxed)];
        }
        fence(Acquire);
        (self.bucket.load(Relaxed) == head).then_some(seen)
    }
}

/// By a writer that was stopped with half a value written in place, and goes on while a reader
/// copies. Without the first change of the bucket the reader returns a half.
#[test]
fn a_reader_of_a_value_that_is_written_in_place_sees_no_half_of_it() {
    loom::model(|| {
        let value = InPlace::new([1, 1], 0);
        let writer = {
            let value = value.clone();
            thread::spawn(move || value.store_spare())
        };
        if let Some(seen) = value.copied() {
            assert_eq!(seen[0], seen[1], "half of each");
        }
        writer.join().expect("no panic");
    });
}

/// A reader without the value's lock takes the new value from the spare, while its writer finishes,
/// and the next one uses the spare for another value. Without the second change of the bucket it
/// gets some of that.
#[test]
fn a_reader_of_a_spare_sees_the_value_it_is_for() {
    loom::model(|| {
        let value = InPlace::new([1, 1], 0);
        let writer = {
            let value = value.clone();
            thread::spawn(move || {
                value.store_spare();
                value.reuse_spare();
            })
        };
        if let Some(seen) = value.copied_with_spare() {
            assert!(seen == [1, 1] || seen == [2, 2], "{seen:?}");
        }
        writer.join().expect("no panic");
    });
}

/// The same by a thread that completes the value, after the writer died with one word written.
#[test]
fn a_reader_of_a_value_that_is_finished_sees_no_half_of_it() {
    loom::model(|| {
        let value = InPlace::new([2, 1], 1);
        let repair = {
            let value = value.clone();
            thread::spawn(move || value.store_spare())
        };
        if let Some(seen) = value.copied() {
            assert_eq!(seen, [2, 2]);
        }
        repair.join().expect("no panic");
    });
}

/// `qp_trie/heap.rs`, `recycle`: a leaf leaves the trie, and its block is used again for another key
/// while a reader stands on it. The reader looks for key 1: it finds value 1, or nothing.
#[test]
fn a_reader_of_a_qp_trie_never_takes_another_keys_value() {
    loom::model(|| {
        let version = Arc::new(AtomicU64::new(0));
        let link = Arc::new(AtomicU64::new(1));
        let (key, value) = (Arc::new(AtomicU64::new(1)), Arc::new(AtomicU64::new(1)));
        let writer = {
            let (version, link) = (version.clone(), link.clone());
            let (key, value) = (key.clone(), value.clone());
            thread::spawn(move || {
                // remove: out of the trie, into limbo.
                link.store(0, Release);
                // recycle.
                version.fetch_add(1, AcqRel);
                fence(Release);
                // fill_leaf, set_value; then the log's store shows it.
                key.store(2, Relaxed);
                value.store(2, Relaxed);
                link.store(1, Release);
            })
        };
        let before = version.load(Acquire);
        if link.load(Acquire) == 1 {
            let hit = key.load(Relaxed) == 1;
            let copied = value.load(Relaxed);
            fence(Acquire);
            if version.load(Relaxed) == before && hit {
                assert_eq!(copied, 1);
            }
        }
        writer.join().expect("no panic");
    });
}

/// `qp_trie/cache.rs`: the leaf of a key is exchanged for another one, by way of a bucket that does
/// not name it for a while. A reader finds the key all the time.
#[test]
fn a_key_is_not_missed_while_its_leaf_is_exchanged() {
    loom::model(|| {
        // Changes above, omitted keys below.
        let state = Arc::new(AtomicU64::new(0));
        let cached = Arc::new(AtomicU64::new(1));
        let trie = Arc::new(AtomicU64::new(1));
        let writer = {
            let (state, cached, trie) = (state.clone(), cached.clone(), trie.clone());
            thread::spawn(move || {
                // The stores of a change in their order; the pair is locked.
                state.store(0x101, Release);
                cached.store(0, Release);
                trie.store(2, Release);
                cached.store(2, Release);
                state.store(0x200, Release);
            })
        };
        let before = state.load(Acquire);
        if cached.load(Acquire) == 0 {
            fence(Acquire);
            let is_final = before & 0xff == 0 && state.load(Relaxed) == before;
            assert!(!is_final, "the key is there");
            assert_ne!(trie.load(Acquire), 0);
        }
        writer.join().expect("no panic");
    });
}

/// `qp_trie/cache.rs`: a key is put into the other bucket of its pair. Who begins to look after that
/// finds it: the state tells of one there only when it is there.
#[test]
fn a_key_that_was_put_beside_is_found() {
    const BESIDE: u64 = 0x100;
    loom::model(|| {
        let state = Arc::new(AtomicU64::new(0));
        let (tag, slot) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
        let trie = Arc::new(AtomicU64::new(0));
        let done = Arc::new(AtomicU64::new(0));
        let writer = {
            let (state, tag, slot) = (state.clone(), tag.clone(), slot.clone());
            let (trie, done) = (trie.clone(), done.clone());
            thread::spawn(move || {
                // The stores of a change in their order; the pair is locked.
                state.store(0x1001, Release);
                trie.store(1, Release);
                slot.store(1, Release);
                tag.store(7, Release);
                state.store(0x2000 + BESIDE, Release);
                done.store(1, Release);
            })
        };
        let is_there = done.load(Acquire) != 0;
        let before = state.load(Acquire);
        let beside = before & BESIDE != 0 && tag.load(Acquire) == 7 && slot.load(Acquire) != 0;
        fence(Acquire);
        let is_final = before & 0xff == 0 && state.load(Relaxed) == before;
        let found = beside || (!is_final && trie.load(Acquire) != 0);
        assert!(found || !is_there, "it was there before");
        writer.join().expect("no panic");
    });
}

/// `shm/qp/memory.rs`, `Log`: a writer dies after any of its stores, and who takes its heap over does those
/// that were written down. A reader sees the leaf that was there or the new one, whole, and what it saw
/// stays; the count of elements is that of the link.
#[test]
fn a_change_of_a_dead_writer_is_made_or_not() {
    const KEY: usize = 0;
    const VALUE: usize = 1;
    const LINK: usize = 2;
    const ELEMENTS: usize = 3;
    // Of the log: the number of stores, and the values for the link and for the elements.
    const NUMBER: usize = 4;
    const NEW_LINK: usize = 5;
    const NEW_ELEMENTS: usize = 6;
    for lives in 0..=8 {
        loom::model(move || {
            let words = Arc::new([const { 0 }; 7].map(AtomicU64::new));
            let writer = {
                let words = words.clone();
                thread::spawn(move || {
                    let stores = [
                        // fill_leaf, set_value
                        (KEY, 2, Relaxed),
                        (VALUE, 2, Relaxed),
                        // commit_these
                        (NEW_LINK, 2, Relaxed),
                        (NEW_ELEMENTS, 1, Relaxed),
                        (NUMBER, 2, Release),
                        (LINK, 2, Release),
                        (ELEMENTS, 1, Release),
                        (NUMBER, 0, Release),
                    ];
                    for (at, value, ordering) in stores.into_iter().take(lives) {
                        words[at].store(value, ordering);
                    }
                })
            };
            let reader = {
                let words = words.clone();
                thread::spawn(move || {
                    let mut before = 0;
                    for _ in 0..2 {
                        let link = words[LINK].load(Acquire);
                        assert!(link >= before, "what was seen stays");
                        if link == 2 {
                            let leaf = [KEY, VALUE].map(|at| words[at].load(Relaxed));
                            assert_eq!(leaf, [2, 2], "whole");
                        }
                        before = link;
                    }
                })
            };
            // Nobody takes a lock over from the living.
            writer.join().expect("no panic");
            // replay
            if words[NUMBER].load(Acquire) != 0 {
                let [link, elements] = [NEW_LINK, NEW_ELEMENTS].map(|at| words[at].load(Relaxed));
                words[LINK].store(link, Release);
                words[ELEMENTS].store(elements, Release);
                words[NUMBER].store(0, Release);
            }
            reader.join().expect("no panic");
            let made = words[LINK].load(Relaxed) == 2;
            assert_eq!(words[ELEMENTS].load(Relaxed), u64::from(made));
            assert_eq!(made, lives >= 5, "what was written down is done");
        });
    }
}

/// `qp_trie/change.rs`: a node is replaced by a copy while another writer, who found it before, puts a child
/// into it. That is not lost: it is in the copy, or the writer finds the node obsolete and begins again.
#[test]
fn a_child_is_not_put_into_a_node_that_was_replaced() {
    const OBSOLETE: u64 = 0x20;
    loom::model(|| {
        let root = Arc::new(AtomicU64::new(0));
        let (heads, children) =
            (Arc::new([0, 0].map(AtomicU64::new)), Arc::new([0, 0].map(AtomicU64::new)));
        // The stripe of both nodes and of the root; how it is taken is another model's.
        let stripe = Arc::new(loom::sync::Mutex::new(()));
        let replaces = {
            let (root, heads, children, stripe) =
                (root.clone(), heads.clone(), children.clone(), stripe.clone());
            thread::spawn(move || {
                let held = stripe.lock().expect("no panic");
                // copy_with, and the stores of the change
                children[1].store(children[0].load(Relaxed), Relaxed);
                root.store(1, Release);
                heads[0].store(OBSOLETE, Release);
                drop(held);
            })
        };
        loop {
            let node = root.load(Acquire) as usize;
            let held = stripe.lock().expect("no panic");
            // `holds`
            if heads[node].load(Relaxed) & OBSOLETE == 0 {
                children[node].store(7, Release);
                break;
            }
            drop(held);
            thread::yield_now();
        }
        replaces.join().expect("no panic");
        assert_eq!(children[root.load(Relaxed) as usize].load(Relaxed), 7);
    });
}

/// `shm/epoch.rs`: an element is put in while a strict walk begins. What was put in before is returned;
/// what somebody began to put in when the walk had begun is passed over.
#[test]
fn a_strict_walk_returns_what_was_there_when_it_began() {
    // The first walk, before which nothing is stamped, and a later one.
    for walks_before in [0, 1] {
        loom::model(move || {
            let walks = Arc::new(AtomicU64::new(walks_before));
            let words = Arc::new([const { 0 }; 4].map(AtomicU64::new));
            let writer = {
                let (walks, words) = (walks.clone(), words.clone());
                thread::spawn(move || {
                    let [row, link, is_in, begun] = &*words;
                    let is_later = begun.load(Acquire) != 0;
                    // stamp
                    if walks.load(Acquire) != 0 {
                        row.store(walks.load(Acquire), Relaxed);
                    }
                    link.store(1, Release);
                    is_in.store(1, Release);
                    is_later
                })
            };
            let [row, link, is_in, begun] = &*words;
            let was_in = is_in.load(Acquire) != 0;
            // begin
            let number = walks.fetch_add(1, SeqCst) + 1;
            begun.store(1, Release);
            // is_newer
            let returned = link.load(Acquire) != 0 && row.load(Acquire) < number;
            let is_later = writer.join().expect("no panic");
            assert!(returned || !was_in, "it was there");
            assert!(!returned || !is_later, "it was not");
        });
    }
}

/// `slots/wait.rs`, `fence_runs`: memory that was taken out of a map is given away when no thread has a
/// slot, while one gets a slot and runs a program. Either its owner is seen, or it does not find that
/// memory.
#[test]
fn a_thread_without_a_slot_does_not_find_what_was_given_away() {
    loom::model(|| {
        let (owner, link) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(1)));
        let program = {
            let (owner, link) = (owner.clone(), link.clone());
            thread::spawn(move || {
                // claim, or the lock of the shared slot.
                owner.compare_exchange(0, 7, AcqRel, Relaxed).expect("nobody else");
                fence(SeqCst);
                link.load(Acquire) != 0
            })
        };
        link.store(0, Release);
        fence(SeqCst);
        let given_away = owner.load(Acquire) == 0;
        let found = program.join().expect("no panic");
        assert!(!(given_away && found));
    });
}
