//! Arrays of `pmix_info_t`, and the data that they point to.

use std::ffi::{CStr, CString, c_char};

use crate::PmixError;
use crate::abi::{ByteObject, Data, DataArray, Info, MAX_KEY, Proc, Value, kind};

/// Keys and values for one call. It owns the data that its entries point to and must outlive the call.
#[derive(Default)]
pub(crate) struct InfoTable {
    infos: Vec<Info>,
    texts: Vec<CString>,
    inner: Vec<(Box<DataArray>, InfoTable)>,
    processes: Vec<(Box<DataArray>, Vec<Proc>)>,
}

impl InfoTable {
    fn push(&mut self, key: &CStr, kind: u16, data: Data) {
        let mut name = [0; MAX_KEY + 1];
        copy_text(&mut name, key);
        self.infos.push(Info { key: name, flags: 0, value: Value { kind, data } });
    }

    /// Adds a text.
    ///
    /// # Errors
    /// It has a NUL.
    pub(crate) fn text(&mut self, key: &CStr, value: &str) -> Result<(), PmixError> {
        let text = c_text(value)?;
        self.push(key, kind::STRING, Data { string: text.as_ptr() });
        self.texts.push(text);
        Ok(())
    }

    pub(crate) fn flag(&mut self, key: &CStr, value: bool) {
        self.push(key, kind::BOOL, Data { flag: value });
    }

    pub(crate) fn short(&mut self, key: &CStr, value: u16) {
        self.push(key, kind::UINT16, Data { uint16: value });
    }

    pub(crate) fn number(&mut self, key: &CStr, value: u32) {
        self.push(key, kind::UINT32, Data { uint32: value });
    }

    pub(crate) fn size(&mut self, key: &CStr, value: usize) {
        self.push(key, kind::SIZE, Data { size: value });
    }

    /// Adds bytes. The library may take them over: it then frees them and clears the entry.
    pub(crate) fn bytes(&mut self, key: &CStr, value: &[u8]) {
        // SAFETY: malloc returns null or room for the bytes, which do not overlap with it.
        let copy = unsafe {
            let copy = libc::malloc(value.len().max(1)).cast::<u8>();
            if !copy.is_null() {
                copy.copy_from_nonoverlapping(value.as_ptr(), value.len());
            }
            copy
        };
        let size = if copy.is_null() { 0 } else { value.len() };
        self.push(key, kind::BYTE_OBJECT, Data { bytes: ByteObject { bytes: copy.cast(), size } });
    }

    pub(crate) fn rank(&mut self, key: &CStr, value: u32) {
        self.push(key, kind::PROC_RANK, Data { uint32: value });
    }

    /// Adds a table as one value.
    pub(crate) fn table(&mut self, key: &CStr, value: InfoTable) {
        let array = DataArray { kind: kind::INFO, size: value.infos.len(), array: value.infos.as_ptr().cast() };
        let array = Box::new(array);
        self.push(key, kind::DATA_ARRAY, Data { array: &raw const *array });
        self.inner.push((array, value));
    }

    /// Adds a list of processes.
    pub(crate) fn processes(&mut self, key: &CStr, value: Vec<Proc>) {
        let array = DataArray { kind: kind::PROC, size: value.len(), array: value.as_ptr().cast() };
        let array = Box::new(array);
        self.push(key, kind::DATA_ARRAY, Data { array: &raw const *array });
        self.processes.push((array, value));
    }

    /// The entries, for a library that only reads them.
    pub(crate) fn entries(&mut self) -> (*mut Info, usize) {
        (self.infos.as_mut_ptr(), self.infos.len())
    }
}

impl Drop for InfoTable {
    fn drop(&mut self) {
        for info in self.infos.iter_mut().filter(|info| info.value.kind == kind::BYTE_OBJECT) {
            // SAFETY: the kind identifies the member that was written. Bytes that the library did not take over are
            // from malloc, in `bytes`, and have no other owner.
            unsafe { libc::free(info.value.data.bytes.bytes.cast_mut().cast()) };
        }
    }
}

/// Converts a text to a C string.
pub(crate) fn c_text(value: &str) -> Result<CString, PmixError> {
    CString::new(value).map_err(|_| PmixError::Text { value: value.to_owned(), problem: "it contains a NUL" })
}

/// Copies a text into a field, truncated to leave room for the final NUL.
pub(crate) fn copy_text(field: &mut [c_char], text: &CStr) {
    let room = field.len().saturating_sub(1);
    for (to, from) in field[..room].iter_mut().zip(text.to_bytes()) {
        *to = *from as c_char;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_point_to_what_the_table_keeps() {
        let mut inner = InfoTable::default();
        inner.rank(c"pmix.rank", 7);
        inner.text(c"pmix.hname", "n1").unwrap();
        let mut table = InfoTable::default();
        table.number(c"pmix.job.size", 4);
        table.table(c"pmix.pdata", inner);
        let mut moved = Box::new(table);
        assert!(moved.text(c"k", "a\0b").is_err());
        let (entries, count) = moved.entries();
        // SAFETY: `moved` owns that many entries, and the data they point to, until the end of the test.
        let entries = unsafe { std::slice::from_raw_parts(entries, count) };
        assert_eq!(entries.len(), 2);
        assert_eq!(entries[0].value.kind, kind::UINT32);
        // SAFETY: the kinds identify the members of the unions that were written.
        unsafe {
            let array = &*entries[1].value.data.array;
            assert_eq!((array.kind, array.size), (kind::INFO, 2));
            let infos = std::slice::from_raw_parts(array.array.cast::<Info>(), array.size);
            assert_eq!(infos[0].value.data.uint32, 7);
            assert_eq!(CStr::from_ptr(infos[1].key.as_ptr()), c"pmix.hname");
            assert_eq!(CStr::from_ptr(infos[1].value.data.string), c"n1");
        }
    }
}
