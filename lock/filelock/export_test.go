package filelock

// FileName is where the lock on key is.
var FileName = fileName

// WriteToken writes a slot.
var WriteToken = writeToken
