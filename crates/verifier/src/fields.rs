//! Fields of values and objects that are more than bytes: locks, timers, pointers to kernel
//! objects, lists, trees.
//!
//! The kernel finds them by the names of their types in the object's BTF (kernel/bpf/btf.c
//! `btf_parse_fields`); programs must not read or write them but through helpers.

use skep_isa::MapType;
use skep_object::Btf;
use skep_object::btf::{Kind, TypeId};

/// What a field is.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum FieldKind {
    /// `struct bpf_spin_lock`.
    SpinLock,
    /// `struct bpf_res_spin_lock`.
    ResSpinLock,
    /// `struct bpf_timer`.
    Timer,
    /// `struct bpf_wq`.
    Wq,
    /// `struct bpf_task_work`.
    TaskWork,
    /// A pointer with a type tag.
    Kptr(Kptr),
    /// `struct bpf_list_head`, and what is in the list.
    ListHead(Option<Contains>),
    /// `struct bpf_list_node`.
    ListNode,
    /// `struct bpf_rb_root`, and what is in the tree.
    RbRoot(Option<Contains>),
    /// `struct bpf_rb_node`.
    RbNode,
    /// `struct bpf_refcount`.
    Refcount,
}

impl FieldKind {
    /// The type's name.
    #[must_use]
    pub const fn name(&self) -> &'static str {
        match self {
            Self::SpinLock => "bpf_spin_lock",
            Self::ResSpinLock => "bpf_res_spin_lock",
            Self::Timer => "bpf_timer",
            Self::Wq => "bpf_wq",
            Self::TaskWork => "bpf_task_work",
            Self::Kptr(_) => "kptr",
            Self::ListHead(_) => "bpf_list_head",
            Self::ListNode => "bpf_list_node",
            Self::RbRoot(_) => "bpf_rb_root",
            Self::RbNode => "bpf_rb_node",
            Self::Refcount => "bpf_refcount",
        }
    }

    /// Tells whether values of maps of type `map` may have such a field (kernel/bpf/syscall.c
    /// `map_check_btf`).
    #[must_use]
    pub const fn may_be_in(&self, map: MapType) -> bool {
        use MapType as M;
        let storage =
            matches!(map, M::SkStorage | M::InodeStorage | M::TaskStorage | M::CgrpStorage);
        match self {
            Self::SpinLock | Self::ResSpinLock => {
                storage || matches!(map, M::Hash | M::Array | M::CgroupStorage)
            }
            Self::Kptr(k) if k.user => matches!(map, M::TaskStorage),
            Self::Kptr(_) | Self::Refcount => {
                let per_cpu = matches!(map, M::PercpuHash | M::PercpuArray | M::LruPercpuHash);
                storage || per_cpu || matches!(map, M::Hash | M::LruHash | M::Array)
            }
            Self::ListNode | Self::RbNode => true,
            _ => matches!(map, M::Hash | M::LruHash | M::Array),
        }
    }
}

/// A pointer to a kernel object, or to one of the program's own.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Kptr {
    /// `__kptr_untrusted`.
    pub untrusted: bool,
    /// `__percpu_kptr`.
    pub percpu: bool,
    /// `__uptr`: memory of the user's.
    pub user: bool,
    /// Type in the object's BTF.
    pub to: TypeId,
}

/// What a list or tree holds: objects of a type, linked by one of its fields.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Contains {
    /// Type of the objects in the object's BTF.
    pub object: TypeId,
    /// Offset of the node in them.
    pub node: u32,
}

/// A field.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Field {
    /// Offset in bytes.
    pub off: u32,
    /// Bytes.
    pub size: u32,
    /// What it is.
    pub kind: FieldKind,
}

/// Fields at which a type has too many (include/linux/bpf.h `BTF_FIELDS_MAX`, and one).
const MOST: usize = 12;
/// Deepest nesting of structures looked into.
const DEPTH: u32 = 8;

/// Finds the fields of a type, in the order of its members.
#[must_use]
pub fn find(btf: &Btf, type_id: TypeId) -> Vec<Field> {
    let mut out = Vec::new();
    collect(btf, type_id, 0, DEPTH, &mut out);
    // A type with more is one without, as in the kernel.
    if out.len() >= MOST { Vec::new() } else { out }
}

fn collect(btf: &Btf, type_id: TypeId, base: u32, depth: u32, out: &mut Vec<Field>) {
    let Ok((id, ty)) = btf.resolve(type_id) else { return };
    if depth == 0 || out.len() >= MOST {
        return;
    }
    match &ty.kind {
        Kind::Struct(s) => {
            for (i, m) in s.members.iter().enumerate() {
                if m.bitfield == 0 {
                    member(
                        btf,
                        id,
                        i,
                        m.type_id,
                        base.saturating_add(m.bit_offset / 8),
                        depth,
                        out,
                    );
                }
            }
        }
        Kind::DataSec(sec) => {
            for v in &sec.vars {
                let Ok(var) = btf.get(v.type_id) else { continue };
                if let Kind::Var(kind) = &var.kind {
                    member(
                        btf,
                        v.type_id,
                        usize::MAX,
                        kind.type_id,
                        base.saturating_add(v.offset),
                        depth,
                        out,
                    );
                }
            }
        }
        _ => {}
    }
}

fn member(
    btf: &Btf,
    owner: TypeId,
    index: usize,
    type_id: TypeId,
    off: u32,
    depth: u32,
    out: &mut Vec<Field>,
) {
    let Ok((id, ty)) = btf.resolve(type_id) else { return };
    let mut push = |size, kind| {
        if out.len() < MOST {
            out.push(Field { off, size, kind });
        }
    };
    match &ty.kind {
        Kind::Ptr(to) => {
            if let Some(kptr) = kptr(btf, *to) {
                push(8, FieldKind::Kptr(kptr));
            }
        }
        Kind::Array(a) if depth > 0 => {
            let size = btf.size_of(a.elem).ok().and_then(|n| u32::try_from(n).ok()).unwrap_or(0);
            for n in 0..a.len.min(MOST as u32) {
                let before = out.len();
                member(
                    btf,
                    owner,
                    index,
                    a.elem,
                    off.saturating_add(n.saturating_mul(size)),
                    depth - 1,
                    out,
                );
                if out.len() == before {
                    break;
                }
            }
        }
        Kind::Struct(s) => {
            let kind = match btf.name(id) {
                "bpf_spin_lock" => FieldKind::SpinLock,
                "bpf_res_spin_lock" => FieldKind::ResSpinLock,
                "bpf_timer" => FieldKind::Timer,
                "bpf_wq" => FieldKind::Wq,
                "bpf_task_work" => FieldKind::TaskWork,
                "bpf_list_head" => FieldKind::ListHead(contains(btf, owner, index)),
                "bpf_list_node" => FieldKind::ListNode,
                "bpf_rb_root" => FieldKind::RbRoot(contains(btf, owner, index)),
                "bpf_rb_node" => FieldKind::RbNode,
                "bpf_refcount" => FieldKind::Refcount,
                _ => return collect(btf, id, off, depth.saturating_sub(1), out),
            };
            push(s.size, kind);
        }
        _ => {}
    }
}

/// What a pointer with type tags leads to.
fn kptr(btf: &Btf, to: TypeId) -> Option<Kptr> {
    let ty = btf.get(to).ok()?;
    let Kind::TypeTag(of) = ty.kind else { return None };
    let tag = btf.string(ty.name_off);
    let (to, _) = btf.resolve(of).ok()?;
    let is = |name: &str| tag == name;
    if !(is("kptr") || is("kptr_untrusted") || is("percpu_kptr") || is("uptr")) {
        return None;
    }
    Some(Kptr { untrusted: is("kptr_untrusted"), percpu: is("percpu_kptr"), user: is("uptr"), to })
}

/// Tells whether a type is a number, or a structure or array of nothing but numbers.
#[must_use]
pub fn is_numbers(btf: &Btf, type_id: TypeId, depth: u32) -> bool {
    let Ok((_, ty)) = btf.resolve(type_id) else { return false };
    match &ty.kind {
        Kind::Int(_) | Kind::Enum(_) | Kind::Enum64(_) | Kind::Float(_) => true,
        Kind::Array(a) => depth > 0 && is_numbers(btf, a.elem, depth - 1),
        Kind::Struct(s) => {
            depth > 0 && s.members.iter().all(|m| is_numbers(btf, m.type_id, depth - 1))
        }
        _ => false,
    }
}

/// What a list head or tree root says it contains: a declaration tag `contains:TYPE:FIELD`.
fn contains(btf: &Btf, owner: TypeId, index: usize) -> Option<Contains> {
    let index = if index == usize::MAX { None } else { Some(u32::try_from(index).ok()?) };
    let text = btf.types().find_map(|(_, t)| match &t.kind {
        Kind::DeclTag(d) if d.type_id == owner && d.component == index => {
            btf.string(t.name_off).strip_prefix("contains:")
        }
        _ => None,
    })?;
    let (object, node) = text.split_once(':')?;
    let object = btf.find(object, |k| matches!(k, Kind::Struct(_)))?;
    let Kind::Struct(s) = &btf.get(object).ok()?.kind else { return None };
    let m = s.members.iter().find(|m| btf.string(m.name_off) == node)?;
    Some(Contains { object, node: m.bit_offset / 8 })
}
