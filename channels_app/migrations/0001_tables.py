import channels_app.models.base
import django.core.validators
import django.db.models.deletion
import django.utils.timezone
from django.conf import settings
from django.core.management import call_command
from django.db import migrations, models

from channels_app.database.operations import CreateTables


def make(apps, schema_editor):
    """The table of the cache that all processes share (CACHES in broker_site/settings.py)."""
    call_command("createcachetable", database=schema_editor.connection.alias, verbosity=0)


def drop(apps, schema_editor):
    schema_editor.execute("DROP TABLE IF EXISTS hookstation_cache")


class Migration(migrations.Migration):

    # Databases that were made by these, before the first release, need nothing more.
    replaces = [
        ('channels_app', '0001_initial'),
        ('channels_app', '0002_channel_pruned_to'),
        ('channels_app', '0003_cache_table'),
        ('channels_app', '0004_audit_team_and_invitation'),
        ('channels_app', '0005_message_timeline'),
        ('channels_app', '0006_consumer_head_of_line'),
        ('channels_app', '0007_schedules'),
        ('channels_app', '0008_channel_ordering'),
        ('channels_app', '0009_inbound'),
        ('channels_app', '0010_sequences'),
        ('channels_app', '0011_channel_max_future_days'),
        ('channels_app', '0012_message_state_names'),
        ('channels_app', '0013_quotas'),
        ('channels_app', '0014_channel_history'),
        ('channels_app', '0015_sensitive_channels'),
        ('channels_app', '0016_event_type_producer'),
        ('channels_app', '0017_signing_keys'),
        ('channels_app', '0018_fan_out_by_priority'),
        ('channels_app', '0019_consumer_max_pumps'),
        ('channels_app', '0020_apikey_sigv4'),
        ('channels_app', '0021_consumer_lapsed_leases'),
        ('channels_app', '0022_consumer_dead_letter_channel'),
        ('channels_app', '0023_consumer_retry_overrides'),
        ('channels_app', '0024_channel_idempotency_scope'),
        ('channels_app', '0025_standard_model_names'),
    ]

    initial = True

    dependencies = [
        migrations.swappable_dependency(settings.AUTH_USER_MODEL),
    ]

    tables = [
        migrations.CreateModel(
            name='ConfigVersion',
            fields=[
                ('id', models.PositiveSmallIntegerField(default=1, primary_key=True, serialize=False)),
                ('number', models.BigIntegerField(default=0)),
            ],
        ),
        migrations.CreateModel(
            name='AuditEntry',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('at', models.DateTimeField(auto_now_add=True, db_index=True)),
                ('actor', models.CharField(max_length=200)),
                ('action', channels_app.models.base.ExactCharField(max_length=100)),
                ('target', channels_app.models.base.ExactCharField(max_length=300)),
                ('team_id', models.BigIntegerField(blank=True, null=True)),
                ('source', models.CharField(blank=True, default='', max_length=100)),
                ('reason', models.CharField(blank=True, default='', max_length=500)),
                ('before', models.JSONField(blank=True, null=True)),
                ('after', models.JSONField(blank=True, null=True)),
            ],
            options={
                'verbose_name_plural': 'audit entries',
                'indexes': [models.Index(fields=['target', 'id'], name='audit_target'), models.Index(fields=['team_id', 'id'], name='audit_team')],
            },
        ),
        migrations.CreateModel(
            name='Channel',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('max_waiting_messages', models.PositiveBigIntegerField(blank=True, null=True, validators=[django.core.validators.MinValueValidator(1)])),
                ('max_waiting_bytes', models.PositiveBigIntegerField(blank=True, null=True, validators=[django.core.validators.MinValueValidator(1)])),
                ('version', models.PositiveIntegerField(default=0, editable=False)),
                ('created_at', models.DateTimeField(default=django.utils.timezone.now, editable=False)),
                ('updated_at', models.DateTimeField(default=django.utils.timezone.now, editable=False)),
                ('slug', channels_app.models.base.ExactCharField(max_length=100, unique=True)),
                ('description', models.TextField(blank=True, default='')),
                ('exposure', models.CharField(choices=[('internal', 'Internal'), ('external', 'External')], default='internal', max_length=10)),
                ('exposed_at', models.DateTimeField(blank=True, editable=False, null=True)),
                ('history', models.CharField(choices=[('granted', 'Granted'), ('shared', 'Shared')], default='granted', max_length=10)),
                ('kind', models.CharField(choices=[('topic', 'Topic'), ('queue', 'Queue')], default='topic', max_length=10)),
                ('ordering', models.CharField(choices=[('keyed', 'Keyed'), ('fifo', 'Fifo')], default='keyed', max_length=10)),
                ('ordering_key_path', models.CharField(blank=True, default='', max_length=200)),
                ('reorder_window_ms', models.PositiveIntegerField(default=500)),
                ('paused', models.BooleanField(default=False)),
                ('sensitive', models.BooleanField(default=False)),
                ('encrypt_bodies', models.BooleanField(default=True)),
                ('require_idempotency_key', models.BooleanField(default=False)),
                ('idempotency_scope', models.CharField(choices=[('producer', 'Producer'), ('channel', 'Channel')], default='producer', max_length=10)),
                ('max_body_bytes', models.PositiveIntegerField(blank=True, null=True)),
                ('content_types', models.JSONField(blank=True, default=list)),
                ('idempotency_window_s', models.PositiveIntegerField(blank=True, null=True)),
                ('max_future_days', models.PositiveIntegerField(blank=True, null=True)),
                ('retention_days', models.PositiveIntegerField(blank=True, null=True)),
                ('dead_retention_days', models.PositiveIntegerField(blank=True, null=True)),
                ('default_retry', models.JSONField(blank=True, null=True)),
                ('pruned_to', models.BigIntegerField(default=0, editable=False)),
            ],
            options={
                'constraints': [models.CheckConstraint(condition=models.Q(('exposure__in', ['internal', 'external'])), name='known_exposure'), models.CheckConstraint(condition=models.Q(('history__in', ['granted', 'shared'])), name='known_channel_history'), models.CheckConstraint(condition=models.Q(('kind__in', ['topic', 'queue'])), name='known_channel_kind'), models.CheckConstraint(condition=models.Q(('ordering__in', ['keyed', 'fifo'])), name='known_channel_ordering'), models.CheckConstraint(condition=models.Q(('idempotency_scope__in', ['producer', 'channel'])), name='known_idempotency_scope')],
            },
        ),
        migrations.CreateModel(
            name='WriteProbe',
            fields=[
                ('id', channels_app.models.base.TimeOrderedKey(primary_key=True, serialize=False)),
                ('data', models.BinaryField()),
            ],
        ),
        migrations.CreateModel(
            name='QuotaUsage',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('scope', models.CharField(choices=[('all', 'All'), ('channel', 'Channel'), ('team', 'Team'), ('disk', 'Disk')], max_length=8)),
                ('owner_id', models.BigIntegerField(default=0)),
                ('messages', models.BigIntegerField(default=0)),
                ('bytes', models.BigIntegerField(default=0)),
                ('counted_at', models.DateTimeField()),
                ('level', models.CharField(choices=[('ok', 'Ok'), ('near', 'Near'), ('full', 'Full')], default='ok', max_length=4)),
            ],
            options={
                'verbose_name_plural': 'quota usage',
                'constraints': [models.UniqueConstraint(fields=('scope', 'owner_id'), name='one_quota_usage_each')],
            },
        ),
        migrations.CreateModel(
            name='Team',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('max_waiting_messages', models.PositiveBigIntegerField(blank=True, null=True, validators=[django.core.validators.MinValueValidator(1)])),
                ('max_waiting_bytes', models.PositiveBigIntegerField(blank=True, null=True, validators=[django.core.validators.MinValueValidator(1)])),
                ('version', models.PositiveIntegerField(default=0, editable=False)),
                ('created_at', models.DateTimeField(default=django.utils.timezone.now, editable=False)),
                ('updated_at', models.DateTimeField(default=django.utils.timezone.now, editable=False)),
                ('slug', channels_app.models.base.ExactCharField(max_length=100, unique=True)),
                ('name', models.CharField(max_length=200)),
            ],
            options={
                'abstract': False,
            },
        ),
        migrations.CreateModel(
            name='Membership',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('team', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='memberships', to='channels_app.team')),
                ('user', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='memberships', to=settings.AUTH_USER_MODEL)),
                ('role', models.CharField(choices=[('owner', 'Owner'), ('editor', 'Editor'), ('viewer', 'Viewer')], default='viewer', max_length=10)),
            ],
            options={
                'constraints': [models.UniqueConstraint(fields=('team', 'user'), name='one_role_per_person'), models.CheckConstraint(condition=models.Q(('role__in', ['owner', 'editor', 'viewer'])), name='known_role')],
            },
        ),
        migrations.CreateModel(
            name='Invitation',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('team', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='invitations', to='channels_app.team')),
                ('role', models.CharField(choices=[('owner', 'Owner'), ('editor', 'Editor'), ('viewer', 'Viewer')], default='viewer', max_length=10)),
                ('digest', channels_app.models.base.ExactCharField(max_length=64, unique=True)),
                ('email', models.EmailField(blank=True, default='', max_length=254)),
                ('invited_by', models.CharField(max_length=150)),
                ('created_at', models.DateTimeField()),
                ('expires_at', models.DateTimeField()),
                ('accepted_at', models.DateTimeField(blank=True, null=True)),
                ('revoked_at', models.DateTimeField(blank=True, null=True)),
            ],
            options={
                'constraints': [models.CheckConstraint(condition=models.Q(('role__in', ['owner', 'editor', 'viewer'])), name='known_invited_role')],
            },
        ),
        migrations.CreateModel(
            name='Consumer',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('version', models.PositiveIntegerField(default=0, editable=False)),
                ('created_at', models.DateTimeField(default=django.utils.timezone.now, editable=False)),
                ('updated_at', models.DateTimeField(default=django.utils.timezone.now, editable=False)),
                ('channel', models.ForeignKey(on_delete=django.db.models.deletion.PROTECT, related_name='consumers', to='channels_app.channel')),
                ('client_id', channels_app.models.base.ExactCharField(max_length=100)),
                ('description', models.TextField(blank=True, default='')),
                ('team', models.ForeignKey(blank=True, null=True, on_delete=django.db.models.deletion.PROTECT, related_name='consumers', to='channels_app.team')),
                ('mode', models.CharField(choices=[('push', 'Push'), ('pull', 'Pull')], default='push', max_length=10)),
                ('state', models.CharField(choices=[('active', 'Active'), ('paused', 'Paused'), ('disabled', 'Disabled'), ('retired', 'Retired')], default='active', max_length=10)),
                ('state_reason', models.CharField(blank=True, default='', max_length=200)),
                ('state_changed_at', models.DateTimeField(blank=True, null=True)),
                ('url', channels_app.models.base.ExactCharField(blank=True, default='', max_length=2048)),
                ('event_types', models.JSONField(blank=True, default=list)),
                ('headers_sealed', models.BinaryField(blank=True, default=bytes)),
                ('signing', models.JSONField(blank=True, default=list)),
                ('timeout_ms', models.PositiveIntegerField(blank=True, null=True)),
                ('max_attempts', models.PositiveIntegerField(blank=True, null=True)),
                ('retry', models.JSONField(blank=True, null=True)),
                ('retry_overrides', models.JSONField(blank=True, default=list)),
                ('rate_per_second', models.FloatField(blank=True, null=True)),
                ('rate_burst', models.PositiveIntegerField(default=1)),
                ('max_in_flight', models.PositiveIntegerField(blank=True, null=True)),
                ('max_pumps', models.PositiveSmallIntegerField(default=1)),
                ('ordering', models.BooleanField(default=False)),
                ('head_of_line', models.CharField(choices=[('skip', 'Skip'), ('block', 'Block')], default='skip', max_length=5)),
                ('ack', models.JSONField(blank=True, null=True)),
                ('lapsed_leases', models.CharField(choices=[('free', 'Free'), ('charged', 'Charged')], default='free', max_length=7)),
                ('dead_letter_channel', models.ForeignKey(blank=True, null=True, on_delete=django.db.models.deletion.SET_NULL, related_name='+', to='channels_app.channel')),
                ('inbound_digest', models.CharField(editable=False, max_length=64, null=True, unique=True)),
                ('inbound_sealed', models.BinaryField(default=bytes)),
            ],
            options={
                'constraints': [models.UniqueConstraint(fields=('channel', 'client_id'), name='one_client_id_per_channel'), models.CheckConstraint(condition=models.Q(('state__in', ['active', 'paused', 'disabled', 'retired'])), name='known_consumer_state'), models.CheckConstraint(condition=models.Q(('mode__in', ['push', 'pull'])), name='known_consumer_mode')],
            },
        ),
        migrations.CreateModel(
            name='ConsumerSecret',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('consumer', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='secrets', to='channels_app.consumer')),
                ('scheme', models.CharField(choices=[('v1', 'V1'), ('v1a', 'V1A')], default='v1', max_length=4)),
                ('sealed', models.BinaryField()),
                ('key_id', models.CharField(max_length=8)),
                ('public_key', models.CharField(blank=True, default='', max_length=100)),
                ('created_at', models.DateTimeField(auto_now_add=True)),
                ('expires_at', models.DateTimeField(blank=True, null=True)),
            ],
            options={
                'constraints': [models.CheckConstraint(condition=models.Q(('scheme__in', ['v1', 'v1a'])), name='known_signing_scheme')],
            },
        ),
        migrations.CreateModel(
            name='SigningKey',
            fields=[
                ('id', models.PositiveIntegerField(primary_key=True, serialize=False)),
                ('sealed', models.BinaryField()),
                ('key_id', channels_app.models.base.ExactCharField(max_length=8)),
                ('created_at', models.DateTimeField()),
            ],
        ),
        migrations.CreateModel(
            name='Producer',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('version', models.PositiveIntegerField(default=0, editable=False)),
                ('created_at', models.DateTimeField(default=django.utils.timezone.now, editable=False)),
                ('updated_at', models.DateTimeField(default=django.utils.timezone.now, editable=False)),
                ('slug', channels_app.models.base.ExactCharField(max_length=100, unique=True)),
                ('description', models.TextField(blank=True, default='')),
                ('team', models.ForeignKey(blank=True, null=True, on_delete=django.db.models.deletion.PROTECT, related_name='producers', to='channels_app.team')),
                ('default_priority', models.PositiveSmallIntegerField(default=4)),
                ('max_priority', models.PositiveSmallIntegerField(default=9)),
                ('rate_per_second', models.FloatField(blank=True, null=True)),
                ('rate_burst', models.PositiveIntegerField(default=100)),
                ('disabled', models.BooleanField(default=False)),
            ],
            options={
                'constraints': [models.CheckConstraint(condition=models.Q(('default_priority__lte', 9), ('max_priority__lte', 9)), name='producer_priority_range')],
            },
        ),
        migrations.CreateModel(
            name='EventType',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('version', models.PositiveIntegerField(default=0, editable=False)),
                ('created_at', models.DateTimeField(default=django.utils.timezone.now, editable=False)),
                ('updated_at', models.DateTimeField(default=django.utils.timezone.now, editable=False)),
                ('channel', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='event_type_set', to='channels_app.channel')),
                ('name', channels_app.models.base.ExactCharField(max_length=128)),
                ('producer', models.ForeignKey(blank=True, editable=False, null=True, on_delete=django.db.models.deletion.SET_NULL, related_name='+', to='channels_app.producer')),
                ('description', models.TextField(blank=True, default='')),
                ('schema', models.JSONField(blank=True, null=True)),
                ('example', models.JSONField(blank=True, null=True)),
                ('deprecated', models.BooleanField(default=False)),
            ],
            options={
                'constraints': [models.UniqueConstraint(fields=('channel', 'name'), name='one_event_type_per_name')],
            },
        ),
        migrations.CreateModel(
            name='ProducerRate',
            fields=[
                ('producer', models.OneToOneField(on_delete=django.db.models.deletion.CASCADE, primary_key=True, serialize=False, to='channels_app.producer')),
                ('arrival_at', models.FloatField(default=0.0)),
            ],
        ),
        migrations.CreateModel(
            name='ApiKey',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('version', models.PositiveIntegerField(default=0, editable=False)),
                ('created_at', models.DateTimeField(default=django.utils.timezone.now, editable=False)),
                ('updated_at', models.DateTimeField(default=django.utils.timezone.now, editable=False)),
                ('key_id', channels_app.models.base.ExactCharField(max_length=32, unique=True)),
                ('digest', channels_app.models.base.ExactCharField(max_length=64)),
                ('sigv4_sealed', models.BinaryField(blank=True, default=bytes)),
                ('label', models.CharField(blank=True, default='', max_length=200)),
                ('producer', models.ForeignKey(blank=True, null=True, on_delete=django.db.models.deletion.CASCADE, related_name='keys', to='channels_app.producer')),
                ('team', models.ForeignKey(blank=True, null=True, on_delete=django.db.models.deletion.CASCADE, related_name='keys', to='channels_app.team')),
                ('scopes', models.JSONField(default=list)),
                ('channels', models.JSONField(blank=True, default=list)),
                ('expires_at', models.DateTimeField(blank=True, null=True)),
                ('revoked_at', models.DateTimeField(blank=True, null=True)),
                ('last_used_at', models.DateTimeField(blank=True, null=True)),
            ],
            options={
                'verbose_name': 'API key',
                'constraints': [models.CheckConstraint(condition=models.Q(('producer__isnull', True), ('team__isnull', True), _connector='OR'), name='key_of_producer_or_team')],
            },
        ),
        migrations.CreateModel(
            name='Sequence',
            fields=[
                ('id', models.BigIntegerField(primary_key=True, serialize=False)),
                ('channel', models.ForeignKey(db_constraint=False, on_delete=django.db.models.deletion.CASCADE, related_name='+', to='channels_app.channel')),
                ('producer', models.ForeignKey(db_constraint=False, db_index=False, null=True, on_delete=django.db.models.deletion.PROTECT, related_name='+', to='channels_app.producer')),
                ('ordering_key', channels_app.models.base.ExactCharField(max_length=255)),
                ('expected', models.BigIntegerField(default=1)),
                ('epoch', models.PositiveIntegerField(default=0)),
                ('last_message_id', models.BigIntegerField(default=0)),
                ('skipped_count', models.BigIntegerField(default=0)),
                ('skipped_from', models.BigIntegerField(null=True)),
                ('skipped_to', models.BigIntegerField(null=True)),
                ('skipped_at', models.DateTimeField(null=True)),
                ('touched_at', models.DateTimeField()),
            ],
            options={
                'indexes': [models.Index(fields=['touched_at'], name='sequence_touched')],
            },
        ),
        migrations.CreateModel(
            name='PendingSequenceNumber',
            fields=[
                ('id', channels_app.models.base.TimeOrderedKey(primary_key=True, serialize=False)),
                ('sequence_id', models.BigIntegerField()),
                ('number', models.BigIntegerField()),
                ('until', models.DateTimeField()),
            ],
            options={
                'constraints': [models.UniqueConstraint(fields=('sequence_id', 'number'), name='one_early_number')],
            },
        ),
        migrations.CreateModel(
            name='Message',
            fields=[
                ('id', channels_app.models.base.TimeOrderedKey(primary_key=True, serialize=False)),
                ('channel', models.ForeignKey(db_constraint=False, db_index=False, on_delete=django.db.models.deletion.PROTECT, related_name='messages', to='channels_app.channel')),
                ('producer', models.ForeignKey(db_constraint=False, db_index=False, null=True, on_delete=django.db.models.deletion.PROTECT, related_name='messages', to='channels_app.producer')),
                ('state', models.CharField(choices=[('accepted', 'Accepted'), ('dispatched', 'Dispatched'), ('cancelled', 'Cancelled')], default='accepted', max_length=12)),
                ('event_type', channels_app.models.base.ExactCharField(blank=True, default='', max_length=128)),
                ('priority', models.PositiveSmallIntegerField(default=4)),
                ('ordering_key', channels_app.models.base.ExactCharField(blank=True, default='', max_length=255)),
                ('idempotency_key', channels_app.models.base.ExactCharField(blank=True, default='', max_length=255)),
                ('content_type', models.CharField(blank=True, default='', max_length=255)),
                ('headers', models.JSONField(blank=True, default=dict)),
                ('body_bytes', models.PositiveIntegerField(default=0)),
                ('accepted_at', models.DateTimeField()),
                ('due_at', models.DateTimeField()),
                ('expires_at', models.DateTimeField(blank=True, null=True)),
                ('consumer_count', models.PositiveIntegerField(default=0)),
                ('version', models.PositiveIntegerField(default=1)),
            ],
            options={
                'permissions': [('open_sensitive_message', 'Can open messages of sensitive channels')],
                'indexes': [models.Index(fields=['state'], name='message_state'), models.Index(fields=['state', 'priority'], name='message_priority'), models.Index(fields=['channel', 'id'], name='message_channel'), models.Index(fields=['channel', 'due_at'], name='message_timeline')],
                'constraints': [models.CheckConstraint(condition=models.Q(('state__in', ['accepted', 'dispatched', 'cancelled'])), name='known_message_state'), models.CheckConstraint(condition=models.Q(('priority__lte', 9)), name='message_priority_range')],
            },
        ),
        migrations.CreateModel(
            name='MessageBody',
            fields=[
                ('message', models.OneToOneField(db_constraint=False, on_delete=django.db.models.deletion.CASCADE, primary_key=True, related_name='body', serialize=False, to='channels_app.message')),
                ('data', models.BinaryField()),
                ('key_id', models.CharField(blank=True, default='', max_length=8)),
            ],
            options={
                'verbose_name_plural': 'message bodies',
            },
        ),
        migrations.CreateModel(
            name='IdempotencyRecord',
            fields=[
                ('digest', channels_app.models.base.ExactCharField(max_length=64, primary_key=True, serialize=False)),
                ('message_id', models.BigIntegerField()),
                ('body_digest', channels_app.models.base.ExactCharField(max_length=64)),
                ('expires_at', models.DateTimeField()),
            ],
            options={
                'indexes': [models.Index(fields=['expires_at'], name='idempotency_expiry')],
            },
        ),
        migrations.CreateModel(
            name='Schedule',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('version', models.PositiveIntegerField(default=0, editable=False)),
                ('created_at', models.DateTimeField(default=django.utils.timezone.now, editable=False)),
                ('updated_at', models.DateTimeField(default=django.utils.timezone.now, editable=False)),
                ('channel', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='schedules', to='channels_app.channel')),
                ('name', channels_app.models.base.ExactCharField(max_length=100)),
                ('producer', models.ForeignKey(blank=True, null=True, on_delete=django.db.models.deletion.PROTECT, related_name='schedules', to='channels_app.producer')),
                ('team', models.ForeignKey(blank=True, null=True, on_delete=django.db.models.deletion.PROTECT, related_name='schedules', to='channels_app.team')),
                ('description', models.TextField(blank=True, default='')),
                ('cron', channels_app.models.base.ExactCharField(blank=True, default='', max_length=200)),
                ('every_ms', models.PositiveBigIntegerField(blank=True, null=True)),
                ('timezone', channels_app.models.base.ExactCharField(default='UTC', max_length=64)),
                ('start_at', models.DateTimeField(blank=True, null=True)),
                ('end_at', models.DateTimeField(blank=True, null=True)),
                ('limit', models.PositiveIntegerField(blank=True, null=True)),
                ('misfire', models.CharField(choices=[('fire_once', 'publish the last of them'), ('fire_all', 'publish all of them'), ('skip', 'publish none of them')], default='fire_once', max_length=10)),
                ('overlap', models.CharField(choices=[('allow', 'publish all the same'), ('skip_if_undelivered', 'leave the occurrence out')], default='allow', max_length=20)),
                ('content_type', models.CharField(blank=True, default='', max_length=255)),
                ('event_type', channels_app.models.base.ExactCharField(blank=True, default='', max_length=128)),
                ('priority', models.PositiveSmallIntegerField(blank=True, null=True)),
                ('ordering_key', channels_app.models.base.ExactCharField(blank=True, default='', max_length=255)),
                ('headers', models.JSONField(blank=True, default=dict)),
                ('body_bytes', models.PositiveIntegerField(default=0, editable=False)),
                ('state', models.CharField(choices=[('active', 'Active'), ('paused', 'Paused'), ('ended', 'Ended')], default='active', max_length=10)),
                ('next_at', models.DateTimeField(editable=False, null=True)),
                ('fired_count', models.PositiveBigIntegerField(default=0, editable=False)),
                ('skipped_count', models.PositiveBigIntegerField(default=0, editable=False)),
                ('last_message_id', models.BigIntegerField(editable=False, null=True)),
                ('recent', models.JSONField(default=list, editable=False)),
            ],
            options={
                'indexes': [models.Index(fields=['next_at'], name='schedule_next')],
                'constraints': [models.UniqueConstraint(fields=('channel', 'name'), name='one_schedule_per_name'), models.CheckConstraint(condition=models.Q(('state__in', ['active', 'paused', 'ended'])), name='known_schedule_state'), models.CheckConstraint(condition=models.Q(('misfire__in', ['fire_once', 'fire_all', 'skip'])), name='known_misfire'), models.CheckConstraint(condition=models.Q(('overlap__in', ['allow', 'skip_if_undelivered'])), name='known_overlap')],
            },
        ),
        migrations.CreateModel(
            name='ScheduleBody',
            fields=[
                ('schedule', models.OneToOneField(on_delete=django.db.models.deletion.CASCADE, primary_key=True, related_name='body', serialize=False, to='channels_app.schedule')),
                ('data', models.BinaryField()),
                ('key_id', models.CharField(blank=True, default='', max_length=8)),
            ],
            options={
                'verbose_name_plural': 'schedule bodies',
            },
        ),
    ]

    operations = [CreateTables(tables), migrations.RunPython(make, drop)]
