//! Links to functions of the own process, or of others.

use std::ffi::{CString, c_char, c_int, c_void};
use std::ptr::null;
use std::time::Duration;

use skep::{FunctionLink, Functions};

use crate::call::{Answer, Failure, call};
use crate::errno;
use crate::handle::{self, Handle, Kind, Table};
use crate::memory::{self, Plain};
use crate::object::{OwnedProgram, object};

static LINKS: Table<FunctionLink> = Table::new("link");

impl Kind for FunctionLink {
    fn table() -> &'static Table<Self> {
        &LINKS
    }
}

/// `struct skep_target`.
#[repr(C)]
#[derive(Clone, Copy)]
#[expect(missing_docs, reason = "the header documents them")]
pub struct Target {
    pub pattern: *const c_char,
    pub cookie: u64,
}

/// `struct skep_attach_opts`.
#[repr(C)]
#[derive(Clone, Copy)]
#[expect(missing_docs, reason = "the header documents them")]
pub struct AttachOptions {
    pub targets: *const Target,
    pub target_count: u64,
    pub exclude: *const c_char,
    pub cookie: u64,
    pub flags: u64,
}

/// `SKEP_ATTACH_OTHERS`.
pub const OTHERS: u64 = 1;

// SAFETY: double words.
unsafe impl Plain for AttachOptions {
    const LEAST: usize = 32;
    const NAME: &'static str = "struct skep_attach_opts";
}

/// `struct skep_function`.
#[repr(C)]
#[derive(Clone, Copy)]
#[expect(missing_docs, reason = "the header documents them")]
pub struct Function {
    pub size: u64,
    pub name: *const c_char,
    pub module: *const c_char,
    pub vaddr: u64,
    pub skipped: *const c_char,
}

/// `struct skep_missed`.
#[repr(C)]
#[derive(Clone, Copy)]
#[expect(missing_docs, reason = "the header documents them")]
pub struct Missed {
    pub inside: u64,
    pub stack: u64,
    pub thread: u64,
    pub slots: u64,
    pub pid_namespace: u64,
}

// SAFETY: double words.
unsafe impl Plain for Missed {
    const LEAST: usize = 40;
    const NAME: &'static str = "struct skep_missed";
}

/// Most targets of a link: more are a wrong number.
const TARGETS: u64 = 1 << 20;

/// Reads which functions are meant; no options are those of the section.
///
/// # Safety
/// `options` is null or has `size` bytes, and what it refers to is there.
unsafe fn functions(options: *const AttachOptions, size: usize) -> Answer<Functions> {
    if options.is_null() {
        return Ok(Functions::of_self_by_section());
    }
    // SAFETY: the caller's promise.
    let options = unsafe { memory::read(options, size) }?;
    if options.flags & !OTHERS != 0 {
        return Err(Failure::new(errno::EINVAL, "the options have unknown flags"));
    }
    let others = options.flags & OTHERS != 0;
    let by_section =
        if others { Functions::of_commands_by_section() } else { Functions::of_self_by_section() };
    let mut functions = by_section.cookie(options.cookie);
    if options.target_count != 0 {
        memory::check(options.targets.cast(), align_of::<Target>(), "list of targets")?;
        if options.target_count > TARGETS {
            return Err(Failure::new(errno::E2BIG, "there are too many targets"));
        }
        functions = if others { Functions::of_commands("") } else { Functions::of_self("") };
        for n in 0..options.target_count as usize {
            // SAFETY: there are as many: the caller's promise.
            let (pattern, cookie) = unsafe {
                let target = options.targets.add(n).read();
                (memory::text(target.pattern, "pattern")?, target.cookie)
            };
            functions = functions.and(pattern).cookie(cookie);
        }
    }
    // SAFETY: null or a text: the caller's promise.
    if let Some(exclude) = unsafe { memory::text_or_none(options.exclude, "excluded pattern") }? {
        functions = functions.exclude(exclude);
    }
    Ok(functions)
}

/// # Safety
/// As the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn skep_program_attach(
    program: Handle,
    options: *const AttachOptions,
    size: usize,
    out: *mut Handle,
) -> c_int {
    // SAFETY: options and `out` are as the caller promises.
    call(|| unsafe {
        let program = handle::get::<OwnedProgram>(program)?;
        let functions = functions(options, size)?;
        handle::give(out, || Ok(program.program()?.attach(functions)?))
    })
}

/// # Safety
/// As the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn skep_object_attach(
    from: Handle,
    programs: *const *const c_char,
    count: usize,
    options: *const AttachOptions,
    size: usize,
    out: *mut Handle,
) -> c_int {
    // SAFETY: names, options and `out` are as the caller promises.
    call(|| unsafe {
        let object = object(from)?;
        let mut names = Vec::new();
        if count != 0 {
            memory::check(programs.cast(), align_of::<*const c_char>(), "list of programs")?;
        }
        for n in 0..count {
            let name = memory::text(programs.add(n).read(), "name of a program")?;
            // Also ends the reading early when the count is wrong.
            object.program(name)?;
            names.push(name);
        }
        let functions = functions(options, size)?;
        handle::give(out, || Ok(object.attach(names, functions)?))
    })
}

/// What is called for each function.
pub type Visit = unsafe extern "C" fn(*mut c_void, *const Function) -> c_int;

/// # Safety
/// As the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn skep_link_functions(
    link: Handle,
    visit: Option<Visit>,
    context: *mut c_void,
) -> c_int {
    call(|| {
        let link = handle::get::<FunctionLink>(link)?;
        let none = || Failure::new(errno::EFAULT, "the function to call is NULL");
        let visit = visit.ok_or_else(none)?;
        let text = |text: &str| CString::new(text.replace('\0', "")).unwrap_or_default();
        let mut visited = 0;
        for function in link.functions().map_err(Failure::from)? {
            let (name, module) = (text(&function.name), text(&function.module));
            let skipped = function.skipped.as_deref().map(text);
            let shown = Function {
                size: size_of::<Function>() as u64,
                name: name.as_ptr(),
                module: module.as_ptr(),
                vaddr: function.vaddr,
                skipped: skipped.as_ref().map_or(null(), |s| s.as_ptr()),
            };
            visited += 1;
            // SAFETY: the caller's function, with what the header says.
            let answer = unsafe { visit(context, &raw const shown) };
            if answer < 0 {
                return Err(Failure::new(answer.saturating_neg(), "the callback ended the walk"));
            }
            if answer > 0 {
                break;
            }
        }
        Ok(visited)
    })
}

/// # Safety
/// As the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn skep_link_missed(link: Handle, missed: *mut Missed, size: usize) -> c_int {
    call(|| {
        let n = handle::get::<FunctionLink>(link)?.missed();
        let all = Missed {
            inside: n.inside,
            stack: n.stack,
            thread: n.thread,
            slots: n.slots,
            pid_namespace: n.namespace,
        };
        // SAFETY: `missed` has `size` bytes: the caller's promise.
        unsafe { memory::write(missed, size, &all) }.map(|()| 0)
    })
}

/// Answers a link's id.
#[unsafe(no_mangle)]
pub extern "C" fn skep_link_id(link: Handle) -> c_int {
    call(|| Ok(handle::get::<FunctionLink>(link)?.id().cast_signed()))
}

/// Detaches and frees a link.
#[unsafe(no_mangle)]
pub extern "C" fn skep_link_detach(link: Handle, timeout_ms: u32) -> c_int {
    call(|| {
        // Other calls may use it at the moment; the last one frees it.
        let Some(link) = handle::take::<FunctionLink>(link)? else { return Ok(1) };
        Ok(c_int::from(link.turn_off().wait(Duration::from_millis(timeout_ms.into()))))
    })
}
