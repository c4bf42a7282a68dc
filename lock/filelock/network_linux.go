package filelock

import (
	"fmt"
	"syscall"
)

// foreign are file systems whose locks may be kept by this machine alone, by their
// numbers in statfs(2).
var foreign = map[uint32]string{
	0x6969:     "NFS",
	0x517b:     "SMB",
	0xff534d42: "CIFS",
	0xfe534d42: "SMB2",
	0x65735546: "FUSE",
	0x01021997: "9P",
	0x5346414f: "AFS",
	0x6b414653: "AFS",
	0x00c36400: "Ceph",
	0x0bd00bd0: "Lustre",
	0x47504653: "GPFS",
	0x19830326: "BeeGFS",
	0x01161970: "GFS2",
	0x7461636f: "OCFS2",
	0x564c:     "NCP",
	0x73757245: "Coda",
	0x786f4256: "VirtualBox's shared folders",
	0xbacbacbc: "VMware's shared folders",
}

// checkFileSystem refuses a directory whose locks may not hold.
func checkFileSystem(dir string) error {
	var s syscall.Statfs_t
	if err := syscall.Statfs(dir, &s); err != nil {
		return err
	}
	if name, ok := foreign[uint32(s.Type)]; ok { //nolint:gosec // the numbers have 32 bits
		return fmt.Errorf("it is on %s, where flock may not exclude other machines; choose a directory on a local disk, or another backend", name)
	}
	return nil
}
