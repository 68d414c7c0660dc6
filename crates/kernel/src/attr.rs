//! `enum bpf_cmd` and the parts of `union bpf_attr` (include/uapi/linux/bpf.h), in the order of its
//! commands. The kernel takes what a structure leaves off at its end as zero.

use std::fmt;

macro_rules! commands {
    ($($variant:ident = $number:literal $name:literal,)*) => {
        /// Names a command of bpf(2), by its kernel number.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[non_exhaustive]
        #[repr(u32)]
        #[allow(missing_docs, reason = "the names are the kernel's own")]
        pub enum Command { $($variant = $number,)* }

        impl Command {
            /// Returns the kernel's name.
            #[must_use]
            pub fn name(self) -> &'static str {
                match self { $(Self::$variant => $name,)* }
            }
        }
    };
}

commands! {
    MapCreate = 0 "BPF_MAP_CREATE",
    MapLookupElem = 1 "BPF_MAP_LOOKUP_ELEM",
    MapUpdateElem = 2 "BPF_MAP_UPDATE_ELEM",
    MapDeleteElem = 3 "BPF_MAP_DELETE_ELEM",
    MapGetNextKey = 4 "BPF_MAP_GET_NEXT_KEY",
    ProgLoad = 5 "BPF_PROG_LOAD",
    ObjPin = 6 "BPF_OBJ_PIN",
    ObjGet = 7 "BPF_OBJ_GET",
    ProgTestRun = 10 "BPF_PROG_TEST_RUN",
    MapGetNextId = 12 "BPF_MAP_GET_NEXT_ID",
    ProgGetFdById = 13 "BPF_PROG_GET_FD_BY_ID",
    MapGetFdById = 14 "BPF_MAP_GET_FD_BY_ID",
    ObjGetInfoByFd = 15 "BPF_OBJ_GET_INFO_BY_FD",
    BtfLoad = 18 "BPF_BTF_LOAD",
    BtfGetFdById = 19 "BPF_BTF_GET_FD_BY_ID",
    MapLookupAndDeleteElem = 21 "BPF_MAP_LOOKUP_AND_DELETE_ELEM",
    MapFreeze = 22 "BPF_MAP_FREEZE",
    MapLookupBatch = 24 "BPF_MAP_LOOKUP_BATCH",
    MapLookupAndDeleteBatch = 25 "BPF_MAP_LOOKUP_AND_DELETE_BATCH",
    MapUpdateBatch = 26 "BPF_MAP_UPDATE_BATCH",
    MapDeleteBatch = 27 "BPF_MAP_DELETE_BATCH",
    LinkCreate = 28 "BPF_LINK_CREATE",
    LinkUpdate = 29 "BPF_LINK_UPDATE",
    LinkDetach = 34 "BPF_LINK_DETACH",
    ProgBindMap = 35 "BPF_PROG_BIND_MAP",
}

impl fmt::Display for Command {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// `BPF_MAP_CREATE`.
#[repr(C, align(8))]
#[derive(Default)]
pub(crate) struct MapCreate {
    pub map_type: u32,
    pub key_size: u32,
    pub value_size: u32,
    pub max_entries: u32,
    pub map_flags: u32,
    pub inner_map_fd: u32,
    pub numa_node: u32,
    pub map_name: [u8; 16],
    pub map_ifindex: u32,
    pub btf_fd: u32,
    pub btf_key_type_id: u32,
    pub btf_value_type_id: u32,
    pub btf_vmlinux_value_type_id: u32,
    pub map_extra: u64,
}

/// `BPF_MAP_*_ELEM`, `BPF_MAP_GET_NEXT_KEY` (`value` is the next key), `BPF_MAP_FREEZE`.
#[repr(C, align(8))]
#[derive(Default)]
pub(crate) struct MapElem {
    pub map_fd: u32,
    pub pad: u32,
    pub key: u64,
    pub value: u64,
    pub flags: u64,
}

/// `BPF_MAP_*_BATCH`.
#[repr(C, align(8))]
pub(crate) struct MapBatch {
    pub in_batch: u64,
    pub out_batch: u64,
    pub keys: u64,
    pub values: u64,
    pub count: u32,
    pub map_fd: u32,
    pub elem_flags: u64,
    pub flags: u64,
}

/// `BPF_PROG_LOAD`.
#[repr(C, align(8))]
#[derive(Default)]
pub(crate) struct ProgLoad {
    pub prog_type: u32,
    pub insn_cnt: u32,
    pub insns: u64,
    pub license: u64,
    pub log_level: u32,
    pub log_size: u32,
    pub log_buf: u64,
    pub kern_version: u32,
    pub prog_flags: u32,
    pub prog_name: [u8; 16],
    pub prog_ifindex: u32,
    pub expected_attach_type: u32,
    pub prog_btf_fd: u32,
    pub func_info_rec_size: u32,
    pub func_info: u64,
    pub func_info_cnt: u32,
    pub line_info_rec_size: u32,
    pub line_info: u64,
    pub line_info_cnt: u32,
    pub attach_btf_id: u32,
}

/// `BPF_OBJ_GET`, `BPF_OBJ_PIN`.
#[repr(C, align(8))]
#[derive(Default)]
pub(crate) struct ObjGet {
    pub pathname: u64,
    pub bpf_fd: u32,
    pub file_flags: u32,
}

/// `BPF_PROG_TEST_RUN`.
#[repr(C, align(8))]
#[derive(Default)]
pub(crate) struct ProgTestRun {
    pub prog_fd: u32,
    pub retval: u32,
    pub data_size_in: u32,
    pub data_size_out: u32,
    pub data_in: u64,
    pub data_out: u64,
    pub repeat: u32,
    pub duration: u32,
    pub ctx_size_in: u32,
    pub ctx_size_out: u32,
    pub ctx_in: u64,
    pub ctx_out: u64,
    pub flags: u32,
    pub cpu: u32,
    pub batch_size: u32,
    pub pad: u32,
}

/// `BPF_LINK_CREATE`.
#[repr(C, align(8))]
#[derive(Default)]
pub(crate) struct LinkCreate {
    pub prog_fd: u32,
    pub target_ifindex: u32,
    pub attach_type: u32,
    pub flags: u32,
}

/// `BPF_LINK_CREATE` with `BPF_TRACE_UPROBE_MULTI`.
#[repr(C, align(8))]
#[derive(Default)]
pub(crate) struct UprobeMulti {
    pub link: LinkCreate,
    pub path: u64,
    pub offsets: u64,
    pub ref_ctr_offsets: u64,
    pub cookies: u64,
    pub count: u32,
    pub flags: u32,
    pub pid: u32,
}

/// `BPF_LINK_UPDATE`; `BPF_LINK_DETACH` reads the first field alone.
#[repr(C, align(8))]
#[derive(Default)]
pub(crate) struct LinkUpdate {
    pub link_fd: u32,
    pub new_prog_fd: u32,
    pub flags: u32,
    pub old_prog_fd: u32,
}

/// `BPF_PROG_BIND_MAP`.
#[repr(C)]
#[derive(Default)]
pub(crate) struct ProgBindMap {
    pub prog_fd: u32,
    pub map_fd: u32,
    pub flags: u32,
}

/// `BPF_*_GET_NEXT_ID` and `BPF_*_GET_FD_BY_ID`.
#[repr(C)]
#[derive(Default)]
pub(crate) struct Id {
    pub id: u32,
    pub next_id: u32,
    pub open_flags: u32,
}

/// `BPF_OBJ_GET_INFO_BY_FD`.
#[repr(C, align(8))]
#[derive(Default)]
pub(crate) struct Info {
    pub bpf_fd: u32,
    pub info_len: u32,
    pub info: u64,
}

/// `BPF_BTF_LOAD`.
#[repr(C, align(8))]
#[derive(Default)]
pub(crate) struct BtfLoad {
    pub btf: u64,
    pub btf_log_buf: u64,
    pub btf_size: u32,
    pub btf_log_size: u32,
    pub btf_log_level: u32,
    pub pad: u32,
}

/// `struct bpf_map_info`, up to what this crate reads.
#[repr(C, align(8))]
#[derive(Default)]
pub(crate) struct MapInfo {
    pub map_type: u32,
    pub id: u32,
    pub key_size: u32,
    pub value_size: u32,
    pub max_entries: u32,
    pub map_flags: u32,
    pub name: [u8; 16],
    pub ifindex: u32,
    pub btf_vmlinux_value_type_id: u32,
    pub netns_dev: u64,
    pub netns_ino: u64,
    pub btf_id: u32,
    pub btf_key_type_id: u32,
    pub btf_value_type_id: u32,
    pub btf_vmlinux_id: u32,
    pub map_extra: u64,
}

/// `struct bpf_link_info`, up to what this crate reads of links of XDP programs.
#[repr(C, align(8))]
#[derive(Default)]
pub(crate) struct LinkInfo {
    pub link_type: u32,
    pub id: u32,
    pub prog_id: u32,
    pub pad: u32,
    pub ifindex: u32,
    pub rest: [u32; 3],
}

/// `struct bpf_prog_info`, up to what this crate reads.
#[repr(C, align(8))]
#[derive(Default)]
pub(crate) struct ProgInfo {
    pub prog_type: u32,
    pub id: u32,
    pub tag: [u8; 8],
    pub jited_prog_len: u32,
    pub xlated_prog_len: u32,
    pub jited_prog_insns: u64,
    pub xlated_prog_insns: u64,
    pub load_time: u64,
    pub created_by_uid: u32,
    pub nr_map_ids: u32,
    pub map_ids: u64,
    pub name: [u8; 16],
}

/// `struct bpf_btf_info`.
#[repr(C, align(8))]
#[derive(Default)]
pub(crate) struct BtfInfo {
    pub btf: u64,
    pub btf_size: u32,
    pub id: u32,
    pub name: u64,
    pub name_len: u32,
    pub kernel_btf: u32,
}

#[cfg(test)]
mod tests {
    use std::mem::offset_of;

    use super::*;

    /// Offsets that a compiler prints for the kernel's header.
    #[test]
    fn structures_are_laid_out_as_the_kernels() {
        assert_eq!((offset_of!(MapCreate, map_extra), size_of::<MapCreate>()), (64, 72));
        assert_eq!((offset_of!(MapBatch, elem_flags), size_of::<MapBatch>()), (40, 56));
        assert_eq!((offset_of!(ProgLoad, line_info), size_of::<ProgLoad>()), (96, 112));
        assert_eq!((offset_of!(ProgTestRun, batch_size), size_of::<ProgTestRun>()), (72, 80));
        assert_eq!((offset_of!(BtfLoad, btf_log_level), size_of::<BtfLoad>()), (24, 32));
        assert_eq!((offset_of!(MapInfo, btf_id), offset_of!(MapInfo, map_extra)), (64, 80));
        assert_eq!((offset_of!(LinkInfo, ifindex), size_of::<LinkInfo>()), (16, 32));
        assert_eq!((offset_of!(ProgInfo, map_ids), size_of::<ProgInfo>()), (56, 80));
        assert_eq!(size_of::<BtfInfo>(), 32);
    }
}
