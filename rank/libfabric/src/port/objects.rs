//! Opens and closes libfabric's objects, in the order of their dependencies, and registers memory.

use super::*;

impl Port {
    pub(super) fn open_objects(&mut self) -> Result<(), Fault> {
        let info = self.offer.info();
        let library = self.library.clone();
        let done = |call, code: i32| if code == 0 { Ok(()) } else { Err(library.fault(call, code)) };
        // SAFETY: the offer is an answer of this library, so all attributes are there. Each object is opened from an
        // open one, with attributes that live during the call, and at once stored for `Drop`. Tables belong to open
        // objects.
        unsafe {
            let objects = &mut self.objects;
            done("fi_fabric", (library.fabric)(self.offer.fabric_attr(), &mut objects.fabric, null_mut()))?;
            let domain =
                entry!((*objects.fabric).ops, fi_ops_fabric, domain).ok_or_else(|| library.missing("fi_domain"))?;
            done("fi_domain", domain(objects.fabric, info, &mut objects.domain, null_mut()))?;

            let ops = (*objects.domain).ops;
            let av_open = entry!(ops, fi_ops_domain, av_open).ok_or_else(|| library.missing("fi_av_open"))?;
            let mut attr: fi_av_attr = std::mem::zeroed();
            attr.r#type = FI_AV_TABLE;
            done("fi_av_open", av_open(objects.domain, &mut attr, &mut objects.av, null_mut()))?;

            let cq_open = entry!(ops, fi_ops_domain, cq_open).ok_or_else(|| library.missing("fi_cq_open"))?;
            let mut attr: fi_cq_attr = std::mem::zeroed();
            attr.format = FI_CQ_FORMAT_MSG;
            attr.wait_obj = FI_WAIT_FD;
            if cq_open(objects.domain, &mut attr, &mut objects.cq, null_mut()) == 0 {
                let mut fd = -1;
                let control =
                    entry!((*objects.cq).fid.ops, fi_ops, control).ok_or_else(|| library.missing("fi_control"))?;
                let got = control(&raw mut (*objects.cq).fid, FI_GETWAIT, (&raw mut fd).cast());
                self.wait = (got == 0 && fd >= 0).then_some(fd);
            } else {
                // Not every provider has a wait object.
                attr.wait_obj = FI_WAIT_NONE;
                done("fi_cq_open", cq_open(objects.domain, &mut attr, &mut objects.cq, null_mut()))?;
            }

            let endpoint = entry!(ops, fi_ops_domain, endpoint).ok_or_else(|| library.missing("fi_endpoint"))?;
            done("fi_endpoint", endpoint(objects.domain, info, &mut objects.ep, null_mut()))?;
            let ep = &raw mut (*objects.ep).fid;
            let bind = entry!((*ep).ops, fi_ops, bind).ok_or_else(|| library.missing("fi_ep_bind"))?;
            done("fi_ep_bind of the address vector", bind(ep, &raw mut (*objects.av).fid, 0))?;
            done("fi_ep_bind of the completion queue", bind(ep, &raw mut (*objects.cq).fid, FI_TRANSMIT | FI_RECV))?;
            let control = entry!((*ep).ops, fi_ops, control).ok_or_else(|| library.missing("fi_enable"))?;
            done("fi_enable", control(ep, FI_ENABLE, null_mut()))?;

            let getname = entry!((*objects.ep).cm, fi_ops_cm, getname).ok_or_else(|| library.missing("fi_getname"))?;
            let (mut name, mut length) = (vec![0u8; MAX_NAME], MAX_NAME);
            done("fi_getname", getname(ep, name.as_mut_ptr().cast(), &mut length))?;
            name.truncate(length);
            self.name = name;
        }
        Ok(())
    }

    /// Registers a block of frames, if the provider requires it.
    pub(super) fn register(&mut self, mut block: Block) -> Result<Block, Fault> {
        let mode = self.offer.parts().2.mr_mode;
        if mode & FI_MR_LOCAL == 0 {
            return Ok(block);
        }
        let library = self.library.clone();
        let done = |call, code: i32| if code == 0 { Ok(()) } else { Err(library.fault(call, code)) };
        let (start, length) = block.memory();
        let (domain, key) = (self.objects.domain, self.next_key);
        self.next_key += 1;
        // SAFETY: domain and endpoint are open; the block's memory lives until the registration is closed (`Drop`).
        unsafe {
            let reg = entry!((*domain).mr, fi_ops_mr, reg).ok_or_else(|| library.missing("fi_mr_reg"))?;
            let fid = &raw mut (*domain).fid;
            let access = FI_SEND | FI_RECV;
            let code = reg(fid, start.cast(), length, access, 0, key, 0, &mut block.registration, null_mut());
            done("fi_mr_reg", code)?;
            if mode & FI_MR_ENDPOINT != 0 {
                let registration = &raw mut (*block.registration).fid;
                let bind = entry!((*registration).ops, fi_ops, bind).ok_or_else(|| library.missing("fi_mr_bind"))?;
                done("fi_mr_bind", bind(registration, &raw mut (*self.objects.ep).fid, 0))?;
                let control =
                    entry!((*registration).ops, fi_ops, control).ok_or_else(|| library.missing("fi_mr_enable"))?;
                done("fi_mr_enable", control(registration, FI_ENABLE, null_mut()))?;
            }
        }
        Ok(block)
    }
}

impl Drop for Port {
    fn drop(&mut self) {
        let mut blocks: Vec<Block> = std::mem::take(&mut self.sends);
        blocks.extend(self.receives.take());
        let bound = self.offer.parts().2.mr_mode & FI_MR_ENDPOINT != 0;
        let objects = &self.objects;
        // SAFETY: each object is null or open, and closed once, in the reverse order of opening. Registrations close
        // after the endpoint that uses their memory, unless they are bound to it: then the provider requires them to
        // close first.
        unsafe {
            let registrations: Vec<*mut fid> = blocks.iter().map(|block| block.registration.cast()).collect();
            if bound {
                close_all(&registrations);
            }
            let gone = close(objects.ep.cast());
            if !bound {
                close_all(&registrations);
            }
            close_all(&[objects.cq.cast(), objects.av.cast(), objects.domain.cast(), objects.fabric.cast()]);
            if !gone {
                // An endpoint that could not be closed may still write to its frames.
                blocks.into_iter().for_each(std::mem::forget);
            }
        }
    }
}

/// Closes objects in this order. An object that cannot be closed is leaked: there is no other remedy.
///
/// # Safety
/// As [`close`].
unsafe fn close_all(objects: &[*mut fid]) {
    for object in objects {
        // SAFETY: the caller's promise.
        let _ = unsafe { close(*object) };
    }
}

/// Closes an object, if there is one. Returns true if it is closed.
///
/// # Safety
/// `object` is null, or an open object that is not used afterwards.
unsafe fn close(object: *mut fid) -> bool {
    if object.is_null() {
        return true;
    }
    // SAFETY: the caller's promise.
    unsafe { entry!((*object).ops, fi_ops, close).is_some_and(|close| close(object) == 0) }
}
