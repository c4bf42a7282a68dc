-- What the tokens of Holdfast's locks need in a database, applied as a whole and as
-- often as one likes. Replace the name of the schema, if need be, wherever it stands.

CREATE SCHEMA IF NOT EXISTS "holdfast";

-- The greatest epoch that tokens were made of: the upper 32 of their 63 bits.
CREATE TABLE IF NOT EXISTS "holdfast".epoch (
	one   boolean PRIMARY KEY DEFAULT true CHECK (one),
	epoch bigint NOT NULL
);
INSERT INTO "holdfast".epoch (epoch) VALUES (0) ON CONFLICT DO NOTHING;

-- The epoch in use, and where its numbers begin. A crash empties the table, and so does
-- a promotion. The row names the server and the database that wrote it, and when that
-- server was started; and the transaction that did, which no restored copy has.
CREATE UNLOGGED TABLE IF NOT EXISTS "holdfast".incarnation (
	epoch  bigint NOT NULL,
	base   bigint NOT NULL,
	born   text   NOT NULL,
	writer bigint NOT NULL
);

-- The lower 31 bits of tokens are what it gives, less the base of the epoch.
CREATE SEQUENCE IF NOT EXISTS "holdfast".token CACHE 1;

-- For a role that may not create them itself:
--
-- GRANT USAGE ON SCHEMA "holdfast" TO app;
-- GRANT SELECT, INSERT, UPDATE ON "holdfast".epoch TO app;
-- GRANT SELECT, INSERT, DELETE ON "holdfast".incarnation TO app;
-- GRANT USAGE, SELECT, UPDATE ON SEQUENCE "holdfast".token TO app;
