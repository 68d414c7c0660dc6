//! What can be wrong with a program, in the kernel's words.

use skep_isa::{HelperId, op};
use skep_object::Mismatch;

/// What is wrong with a program. Messages are the kernel's (kernel/bpf/verifier.c) where the kernel
/// has one.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs, reason = "the fields are named after what the message says")]
pub enum Reason {
    // Shape of the program.
    #[error("program has no instructions")]
    Empty,
    #[error("program has {count} instructions, more than {limit}")]
    TooManyInsns { count: usize, limit: usize },
    #[error("unknown opcode {code:02x}")]
    UnknownOpcode { code: u8 },
    #[error("{what} uses reserved fields")]
    ReservedFields { what: &'static str },
    #[error("R{reg} is invalid")]
    NoSuchRegister { reg: u8 },
    #[error("frame pointer is read only")]
    FramePointerWrite,
    #[error("invalid bpf_ld_imm64 insn")]
    BadLdImm64,
    #[error("jump out of range from insn {from} to {to}")]
    JumpOutOfRange { from: usize, to: i64 },
    #[error("jump into the middle of ldimm64 insn {to}")]
    JumpIntoLdImm64 { to: usize },
    #[error("last insn is not an exit or jmp")]
    FallsOff,
    #[error("unreachable insn {insn}")]
    Unreachable { insn: usize },
    #[error("div by zero")]
    DivByZero,
    #[error("invalid shift {amount}")]
    BadShift { amount: i32 },
    #[error("map index {index} is not one of the program's {maps} maps")]
    NoSuchMap { index: i32, maps: usize },
    #[error("invalid access to map value pointer, value_size={size} off={off}")]
    BadDirectValue { off: u32, size: u32 },
    #[error("no direct value access support for this map type")]
    NoDirectValue,
    #[error("{what} is not supported by skep yet")]
    Unsupported { what: &'static str },

    // Limits.
    #[error("BPF program is too large. Processed {processed} insn")]
    TooComplex { processed: u32 },
    #[error("The sequence of {jumps} jumps is too complex.")]
    TooManyForks { jumps: usize },
    #[error("infinite loop detected at insn {insn}")]
    InfiniteLoop { insn: usize },
    #[error("the call stack of {frames} frames is too deep")]
    CallStackTooDeep { frames: usize },
    #[error("combined stack size of {calls} calls is {size}. Too large")]
    StackTooLarge { calls: usize, size: u32 },

    // Registers.
    #[error("R{reg} !read_ok")]
    Unreadable { reg: u8 },
    #[error("R{reg} type={found} expected={expected}")]
    WrongType { reg: u8, found: String, expected: &'static str },

    // Pointer arithmetic.
    #[error("R{reg} 32-bit pointer arithmetic prohibited")]
    Alu32OnPointer { reg: u8 },
    #[error("R{reg} pointer arithmetic on {kind} prohibited{}", if *.nullable { ", null-check it first" } else { "" })]
    NoArithmetic { reg: u8, kind: String, nullable: bool },
    #[error("R{reg} pointer {op} pointer prohibited")]
    PointerAndPointer { reg: u8, op: &'static str },
    #[error("R{reg} bitwise operator {op} on pointer prohibited")]
    BitsOfPointer { reg: u8, op: &'static str },
    #[error("R{reg} pointer arithmetic with {op} operator prohibited")]
    PointerOperator { reg: u8, op: &'static str },
    #[error("R{reg} tried to subtract pointer from scalar")]
    ScalarMinusPointer { reg: u8 },
    #[error("R{reg} subtraction from stack pointer prohibited")]
    StackMinus { reg: u8 },
    #[error("math between {kind} pointer and {n} is not allowed")]
    HugeStep { kind: &'static str, n: i64 },
    #[error("math between {kind} pointer and register with unbounded min value is not allowed")]
    UnboundedStep { kind: &'static str },
    #[error("{kind} pointer offset {off} is not allowed")]
    HugeOffset { kind: &'static str, off: i64 },
    #[error("value {n} makes {kind} pointer be out of bounds")]
    MakesOutOfBounds { kind: &'static str, n: i64 },

    // Memory.
    #[error("R{reg} invalid mem access '{kind}'")]
    NotMemory { reg: u8, kind: String },
    #[error("invalid access to {what}, {size_name}={region} off={off} size={size}")]
    OutOfBounds { what: &'static str, size_name: &'static str, region: u32, off: i64, size: u32 },
    #[error("R{reg} {side} value is outside of the allowed memory range")]
    OutsideRange { reg: u8, side: &'static str },
    #[error(
        "R{reg} min value is negative, either use unsigned index or do a if (index >=0) check."
    )]
    NegativeIndex { reg: u8 },
    #[error("R{reg} unbounded memory access, make sure to bounds check any such access")]
    Unbounded { reg: u8 },
    #[error("misaligned {what} access off {off} size {size}")]
    Misaligned { what: &'static str, off: String, size: u32 },
    #[error("write into map forbidden, value_size={size} off={off} size={access}")]
    ReadOnlyMap { size: u32, off: i64, access: u32 },
    #[error("write into map forbidden")]
    ReadOnlyMapUpdate,
    #[error("cannot update sockmap in this context")]
    SockmapUpdate,
    #[error("get_local_storage() doesn't support non-zero flags")]
    StorageFlags,
    #[error("LD_ABS is only allowed in functions that return 'int'.")]
    PacketLoadInVoid,
    #[error("exception callbacks are not supported by skep yet")]
    ExceptionCallback,
    #[error("R{reg} doesn't have constant offset. {field} has to be at the constant offset")]
    VariableField { reg: u8, field: &'static str },
    #[error("map '{map}' has to have BTF in order to use {field}")]
    NoFieldTypes { map: String, field: &'static str },
    #[error("map '{map}' has to have BTF in order to use {field}, and no {kind} may have that")]
    FieldOfOtherMaps { map: String, field: &'static str, kind: &'static str },
    #[error("map '{map}' has no valid {field}")]
    NoSuchField { map: String, field: &'static str },
    #[error("off {off} doesn't point to 'struct {field}' that is at {at}")]
    NotAtField { field: &'static str, off: i64, at: u32 },
    #[error("Locking two bpf_spin_locks are not allowed")]
    TwoLocks,
    #[error("{what} rbtree cb")]
    InComparison { what: &'static str },
    #[error("bpf_spin_unlock without taking a lock")]
    NotLocked,
    #[error("bpf_spin_unlock of different lock")]
    OtherLock,
    #[error("{field} cannot be accessed {how}")]
    FieldAccess { field: &'static str, how: &'static str },
    #[error("kptr access {what}")]
    KptrAccess { what: &'static str },
    #[error("{progs} progs cannot use {field} yet")]
    FieldInProgram { progs: &'static str, field: &'static str },
    #[error("read from map forbidden, value_size={size} off={off} size={access}")]
    WriteOnlyMap { size: u32, off: i64, access: u32 },
    #[error("invalid bpf_context access off={off} size={size}")]
    BadContext { off: i64, size: u32 },
    #[error("func '{function}' {why}")]
    Function { function: String, why: Mismatch },
    #[error("dereference of modified {kind} ptr R{reg} off={off} disallowed")]
    ModifiedPointer { kind: &'static str, reg: u8, off: i64 },
    #[error("negative offset {kind} ptr R{reg} off={off} disallowed")]
    NegativePointer { kind: &'static str, reg: u8, off: i64 },
    #[error("variable {kind} access var_off={bits} disallowed")]
    VariablePointer { kind: &'static str, bits: String },
    #[error("cannot write into packet")]
    PacketWrite,
    /// A load that reads an address from the context on one path and something else on another.
    #[error("same insn cannot be used with different pointers")]
    DifferentPointers,
    #[error("R{reg} cannot write into {kind}")]
    ReadOnlyPointer { reg: u8, kind: String },
    #[error("R{reg} invalid {kind} access off={off} size={size}")]
    BadSockAccess { reg: u8, kind: String, off: i64, size: u32 },
    #[error("R{reg} offset is outside of the packet")]
    OutsidePacket { reg: u8 },
    #[error("BPF_ATOMIC {what} R{reg} {kind} is not allowed")]
    AtomicOn { reg: u8, what: &'static str, kind: String },

    // Stack.
    #[error("invalid {what} stack R{reg} off={off} size={size}")]
    BadStackAccess { what: &'static str, reg: u8, off: i64, size: u32 },
    #[error("invalid variable-offset {what} stack R{reg} var_off={bits} off={off} size={size}")]
    BadVariableStackAccess { what: &'static str, reg: u8, bits: String, off: i64, size: u32 },
    #[error("invalid unbounded variable-offset {what} stack R{reg}")]
    UnboundedStack { what: &'static str, reg: u8 },
    #[error("invalid read from stack off {off}+{at} size {size}")]
    UninitStackRead { off: i64, at: u32, size: u32 },
    #[error("invalid {what} stack R{reg} off {off}+{at} size {size}")]
    UninitIndirect { what: &'static str, reg: u8, off: i64, at: u32, size: u32 },
    #[error("invalid size of register {what}")]
    SpillSize { what: &'static str },
    #[error("cannot spill pointers to stack into stack frame of the caller")]
    SpillToCaller,
    #[error("cannot return stack pointer to the caller")]
    ReturnsStack,

    // Calls.
    #[error("invalid func unknown#{id}")]
    NoSuchHelper { id: HelperId },
    #[error("program of this type cannot use helper {name}#{id}")]
    HelperNotAllowed { name: String, id: HelperId },
    #[error("helper {name}#{id} cannot be called outside the kernel: {why}")]
    NotOffered { name: String, id: HelperId, why: &'static str },
    #[error("helper call might sleep in a non-sleepable prog")]
    MightSleep,
    #[error("helper access to the packet is not allowed")]
    PacketToHelper,
    #[error("cannot call GPL-restricted function from non-GPL compatible program")]
    NeedsGpl { name: String },
    #[error("cannot pass map_type {kind} into func {name}#{id}")]
    WrongMap { kind: &'static str, name: String, id: HelperId },
    #[error("R{reg} is not a known constant'")]
    NotConstant { reg: u8 },
    #[error("R{reg} min value is negative, either use unsigned or 'var &= const'")]
    NegativeSize { reg: u8 },
    #[error("R{reg} invalid zero-sized read: u64=[{min},{max}]")]
    ZeroSize { reg: u8, min: u64, max: u64 },
    #[error("R{reg} unbounded memory access, use 'var &= const' or 'if (var < const)'")]
    UnboundedSize { reg: u8 },
    #[error("R{reg} does not point to a readonly map'")]
    NotReadOnlyMap { reg: u8 },
    #[error("R{reg} is not a constant address'")]
    NotConstAddress { reg: u8 },
    #[error("string is not zero-terminated")]
    NotTerminated,
    #[error("invalid format string: {what}")]
    BadFormat { what: &'static str },
    #[error("R{reg} must have zero offset when passed to release func")]
    ReleaseOffset { reg: u8 },
    #[error("R{reg} must be referenced when passed to release function")]
    NotReferenced { reg: u8 },
    #[error("At callback return the register R0 has {found} should have been in [{min}, {max}]")]
    BadCallbackReturn { found: String, min: i64, max: i64 },
    #[error("a callback releases a reference of its caller")]
    ReleasedInCallback,

    #[error("{what} cannot be used inside {section} region")]
    Inside { what: &'static str, section: &'static str },
    #[error("function calls are not allowed while holding a lock")]
    CallUnderLock,
    #[error("BPF_LD_[ABS|IND] instructions not allowed for this program type")]
    NoPacketLoads,
    #[error("at the time of BPF_LD_ABS|IND R6 != pointer to skb")]
    NoSkb,

    #[error("Global function {name}() doesn't return scalar. Only those are supported.")]
    GlobalReturns { name: String },
    #[error("Global function {name}() with {count} > 5 args. Buggy compiler.")]
    GlobalParams { name: String, count: usize },
    #[error("Arg#{arg} type {what} in {name}() is not supported yet.")]
    GlobalParam { name: String, arg: u32, what: String },
    #[error("Caller passes invalid args into func#{func} ('{name}')")]
    GlobalArguments { func: usize, name: String },
    #[error(
        "global function calls are not allowed while holding a lock, use static function instead"
    )]
    GlobalUnderLock,
    #[error("global functions that may sleep are not allowed in non-sleepable context")]
    GlobalSleeps,
    #[error("At subprogram exit the register R0 is not a scalar value ({found})")]
    GlobalReturn { found: String },

    #[error("At async callback the register R0 has {found} should have been in [0, 0]")]
    BadLaterReturn { found: String },
    #[error("sleepable helper {name}#{id} in rcu_read_lock or non-preemptible region")]
    HelperSleepsInside { name: String, id: HelperId },
    #[error("calling kernel function {name} is not allowed")]
    KfuncNotAllowed { name: &'static str },
    #[error("program must be sleepable to call sleepable kfunc {name}")]
    KfuncSleeps { name: &'static str },
    #[error("kernel func {name} is sleepable within rcu_read_lock region")]
    SleepsInside { name: &'static str },
    #[error("kernel func {name} requires RCU critical section protection")]
    NeedsRcu { name: &'static str },
    #[error("nested rcu read lock (kernel function bpf_rcu_read_lock)")]
    NestedRcu,
    #[error("unmatched rcu read unlock (kernel function bpf_rcu_read_unlock)")]
    NotInRcu,
    #[error("unmatched attempt to enable preemption (kernel function bpf_preempt_enable)")]
    NotDisabled,
    #[error("R{reg} is not a scalar")]
    NotScalar { reg: u8 },
    #[error("R{reg} must be a known constant")]
    MustBeConstant { reg: u8 },
    #[error("Possibly NULL pointer passed to trusted arg{arg}")]
    NullToTrusted { arg: u8 },
    #[error("arg#{arg} of {name} is not a pointer to a kernel object")]
    NotObject { name: &'static str, arg: u8 },
    #[error("release kernel function {name} expects refcounted PTR_TO_BTF_ID")]
    NotRefcounted { name: &'static str },
    #[error("R{reg} must be referenced or trusted")]
    NotTrusted { reg: u8 },
    #[error("R{reg} must be a rcu pointer")]
    NotRcu { reg: u8 },
    #[error(
        "kernel function {name} args#{arg} expected pointer to STRUCT {expected} but R{reg} has a pointer to STRUCT {found}"
    )]
    OtherObject { name: &'static str, arg: u8, expected: &'static str, reg: u8, found: String },
    #[error("the prog does not allow writes to packet data")]
    PacketSliceWrite,
    #[error("arg#{arg} expected pointer to {what} on stack")]
    NotOnStack { arg: u8, what: &'static str },
    #[error("{what} has to be at a constant offset")]
    VariableObject { what: &'static str },
    #[error("cannot pass in {what} at an offset={off}")]
    BadObjectOffset { what: &'static str, off: i64 },
    #[error("potential write to dynptr at off={off} disallowed")]
    DynptrOverwrite { off: i32 },
    #[error("cannot overwrite referenced dynptr")]
    ReferencedDynptr,
    #[error("Expected an initialized dynptr as R{reg}")]
    NoDynptr { reg: u8 },
    #[error("Expected a dynptr of type local or ringbuf as R{reg}")]
    DynptrKey { reg: u8 },
    #[error("Dynptr has to be an uninitialized dynptr")]
    DynptrNotUninit,
    #[error("cannot pass pointer to const bpf_dynptr, the helper mutates it")]
    ConstDynptr,
    #[error("Expected a dynptr of type {expected} as R{reg}")]
    OtherDynptr { reg: u8, expected: &'static str },
    #[error("expected uninitialized {name} as arg #{arg}")]
    IterNotUninit { name: &'static str, arg: u8 },
    #[error("expected an initialized {name} as arg #{arg}")]
    NoIter { name: &'static str, arg: u8 },
    #[error("expected an RCU CS when using {name}")]
    IterNeedsRcu { name: &'static str },
    #[error("{what}")]
    BadObjectType { what: &'static str },
    #[error("arg#{arg} expected pointer to allocated object")]
    NotAllocated { arg: u8 },
    #[error("allocated object must be referenced")]
    ObjectNotReferenced,
    #[error("arg#{arg} is neither owning or non-owning ref")]
    NeitherOwning { arg: u8 },
    #[error("arg#{arg} doesn't point to a type with bpf_refcount field")]
    NoRefcount { arg: u8 },
    #[error("bpf_spin_lock must be held for {name}")]
    NoLockForRoot { name: &'static str },
    #[error("held lock and object are not in the same allocation")]
    OtherAllocation,
    #[error("rbtree_remove node input must be non-owning ref")]
    NotNonOwning,
    #[error(
        "operation on a list or tree expects arg#{arg} to be the node of an object that it contains"
    )]
    OtherNode { arg: u8 },
    #[error("R{reg} is ptr_{name} {what}: off={off}")]
    ObjectOffset { reg: u8, name: String, what: &'static str, off: i64 },
    #[error("only read is supported")]
    OnlyRead,
    #[error("R{reg} has no valid kptr")]
    NoKptr { reg: u8 },

    // With `strict`.
    #[error("leaks addr into {what}")]
    LeaksInto { what: String },
    #[error("R0 leaks addr as return value")]
    LeaksReturn,
    #[error("R{reg} partial copy of pointer")]
    PartOfPointer { reg: u8 },
    #[error("{name} access is allowed only to CAP_PERFMON and CAP_SYS_ADMIN")]
    ForRoot { name: String },
    #[error("attempt to corrupt spilled pointer on stack")]
    CorruptsPointer,
    #[error("R{reg} variable stack access prohibited for !root, var_off={bits} off={off}")]
    VariableStack { reg: u8, bits: String, off: i64 },
    #[error("R{reg} pointer comparison prohibited")]
    ComparesPointer { reg: u8 },

    // The end.
    #[error("Unreleased reference id={id} alloc_insn={insn}")]
    Unreleased { id: u32, insn: usize },
    #[error("At program exit the register R0 has {found} should have been in [{min}, {max}]")]
    BadReturn { found: String, min: i64, max: i64 },
    #[error("At program exit the register R0 is not a known value ({found})")]
    ReturnsPointer { found: String },
}

impl Reason {
    /// Tells whether nothing was found, but the search given up.
    pub(crate) fn is_of_effort(&self) -> bool {
        matches!(self, Self::TooComplex { .. } | Self::TooManyForks { .. })
    }

    /// Tells whether the message says itself that it is about this instruction.
    pub(super) fn names(&self, insn: usize) -> bool {
        let text = self.to_string();
        let number = insn.to_string();
        text.match_indices("insn ").any(|(at, word)| {
            let number_there: String =
                text[at + word.len()..].chars().take_while(char::is_ascii_digit).collect();
            number_there == number
        })
    }

    /// The first register that the message names.
    pub(crate) fn register(&self) -> Option<u8> {
        let text = self.to_string();
        let number = |word: &str| word.strip_prefix('R')?.parse().ok().filter(|r| *r < op::FP);
        text.split(|c: char| !c.is_ascii_alphanumeric()).find_map(number)
    }

    /// Tells whether what is called may not be called here at all: no argument changes that.
    pub(crate) fn is_about_the_callee(&self) -> bool {
        matches!(
            self,
            Self::NoSuchHelper { .. }
                | Self::HelperNotAllowed { .. }
                | Self::NotOffered { .. }
                | Self::NeedsGpl { .. }
                | Self::MightSleep
                | Self::KfuncNotAllowed { .. }
                | Self::KfuncSleeps { .. }
        )
    }
}
